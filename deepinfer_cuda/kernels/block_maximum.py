"""Largest visible score of each block of neighbouring columns."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded

LARGEST_BF16 = tl.constexpr(3.3895313892515355e38)


@triton.jit
def block_maximum_kernel(
    scores_ptr,
    lengths_ptr,
    best_ptr,
    counts_ptr,
    scores_stride,
    best_stride,
    width,
    second,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    NEWEST: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Program ``(t, i)`` reads ``BLOCKS`` blocks of row ``t``.

    Args:
        scores_ptr: ``[T, width]``.
        lengths_ptr: Columns that count, per row.
        best_ptr: ``[T, ceil(width / SIZE)]``; with ``SECOND``, from column ``second`` on the maxima of every eight
            blocks.
        counts_ptr: Receives the blocks of each row, with ``NEWEST``.
        scores_stride: Distance of rows in elements.
        best_stride: Distance of rows in elements.
        width: Columns of the scores.
        second: See ``best_ptr``.
        SIZE: Columns of a block.
        PADDED: The next power of two.
        BLOCKS: Blocks of a program.
        EVEN: Whether ``SIZE`` divides ``width``.
        NEWEST: Whether the last block of a row counts as infinite, others being capped at the largest bfloat16
            number, and what lies past a row's length is written.
        SECOND: See ``best_ptr``.
    """
    row = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.load(lengths_ptr + row), width)
    num_blocks = tl.cdiv(length, SIZE)
    first = tl.program_id(1) * BLOCKS
    if NEWEST or first < num_blocks:
        block, within = first + tl.arange(0, BLOCKS), tl.arange(0, PADDED)
        place = scores_ptr + row * scores_stride + block[:, None] * SIZE + within[None, :]
        whole = PADDED == SIZE and (first + BLOCKS) * SIZE <= length
        if whole:
            best = tl.max(tl.load(place).to(tl.float32), 1)
        else:
            left = length - block * SIZE
            counted = within[None, :] < (left if PADDED == SIZE else tl.minimum(left, SIZE))[:, None]
            # A mask that is the same for all columns of a block keeps the load as wide as the block.
            loaded = (left > 0)[:, None] & (within < SIZE)[None, :] if EVEN else counted
            values = tl.load(place, mask=loaded, other=float("-inf")).to(tl.float32)
            best = tl.max(tl.where(counted, values, float("-inf")), 1)
        target = best_ptr + row * best_stride
        written = block < tl.cdiv(width, SIZE)
        if NEWEST:
            best = tl.where(best > LARGEST_BF16, LARGEST_BF16, best)  # NaN is not larger and stays
            best = tl.where(block == num_blocks - 1, float("inf"), best)
            if first == 0:
                tl.store(counts_ptr + row, num_blocks)
        best_type: tl.constexpr = best_ptr.dtype.element_ty
        if whole:
            tl.store(target + block, rounded(best, best_type))
        else:
            tl.store(target + block, rounded(best, best_type), mask=written)
        if SECOND:
            group = tl.program_id(1) * (BLOCKS // 8) + tl.arange(0, BLOCKS // 8)
            best = tl.max(tl.reshape(best, [BLOCKS // 8, 8]), 1)
            written = group < tl.cdiv(width, SIZE * 8)
            tl.store(target + second + group, rounded(best, best_type), mask=written)
