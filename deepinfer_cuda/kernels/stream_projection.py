"""Products of whole rows of streams with the few rows of a function, in parts; one pass also collapses the streams.

A program takes some rows and a part of the channels of every stream. Its sums go to a row of 32 numbers, which whoever
needs them adds up over the parts: the products, then the sum of squares of the streams, then that of the collapsed row.
The parts depend on the width alone, so a row's bits do not depend on its company.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED, rounded

SUMS = tl.constexpr(32)
"""Numbers of a part."""
SQUARES = tl.constexpr(30)
"""Place of the sum of squares of all streams."""
COLLAPSED_SQUARES = tl.constexpr(31)
"""Place of the sum of squares of the collapsed row."""


@triton.jit
def stream_projection_kernel(
    streams_ptr,
    mix_ptr,
    function_ptr,
    collapsed_ptr,
    sums_ptr,
    streams_stride,
    mix_stride,
    function_stride,
    num_rows,
    width,
    function_rows,
    STREAMS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLLAPSE: tl.constexpr,
):
    """Program ``(p, i)`` takes part ``p`` of rows ``i * ROWS ..``.

    Args:
        streams_ptr: ``[T, STREAMS, width]`` bfloat16, dense within a row.
        mix_ptr: ``[T, STREAMS]`` float32, the weights of the collapse.
        function_ptr: ``[function_rows, STREAMS * width]`` float32.
        collapsed_ptr: ``[T, width]``, with ``COLLAPSE``.
        sums_ptr: ``[parts, T, 32]`` float32.
        streams_stride: Distance of rows in elements, as the other strides.
        mix_stride: See there.
        function_stride: See there.
        num_rows: T.
        width: Channels of a stream.
        function_rows: At most 30.
        STREAMS: Streams.
        PART: Channels of a part.
        BLOCK: Channels of one step.
        ROWS: Rows of a program.
        COLLAPSE: Whether to collapse as well.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = row < num_rows
    index = row.to(tl.int64)
    output = tl.arange(0, SUMS)
    products = tl.zeros([ROWS, SUMS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    collapsed_squares = tl.zeros([ROWS], tl.float32)
    for start in range(tl.program_id(0) * PART, tl.program_id(0) * PART + PART, BLOCK):
        channel = start + tl.arange(0, BLOCK)
        inside = channel < width
        collapsed = tl.zeros([ROWS, BLOCK], tl.float32)
        for stream in tl.static_range(STREAMS):
            place = stream * width + channel
            x = tl.load(
                streams_ptr + index[:, None] * streams_stride + place[None, :],
                mask=real[:, None] & inside[None, :],
                other=0.0,
            )
            weight = tl.load(
                function_ptr + output[None, :] * function_stride + place[:, None],
                mask=(output < function_rows)[None, :] & inside[:, None],
                other=0.0,
            )
            products = _add_product(x, weight, products)
            numbers = x.to(tl.float32)
            squares += tl.sum(numbers * numbers, 1)
            if COLLAPSE:
                mix = tl.load(mix_ptr + index * mix_stride + stream, mask=real, other=0.0)
                collapsed += mix[:, None] * numbers
        if COLLAPSE:
            kept = rounded(collapsed, tl.bfloat16)
            target = collapsed_ptr + index[:, None] * width + channel[None, :]
            tl.store(target, kept, mask=real[:, None] & inside[None, :])
            numbers = kept.to(tl.float32)
            collapsed_squares += tl.sum(numbers * numbers, 1)
    sums = tl.where(output[None, :] == SQUARES, squares[:, None], products)
    sums = tl.where(output[None, :] == COLLAPSED_SQUARES, collapsed_squares[:, None], sums)
    target = sums_ptr + (tl.program_id(0).to(tl.int64) * num_rows + index)[:, None] * SUMS + output[None, :]
    tl.store(target, sums, mask=real[:, None])


@triton.jit
def _add_product(x, weight, total):
    """``total + x @ weight``: bfloat16 rows are exact, float32 weights are split into two bfloat16 numbers."""
    if INTERPRETED:
        return tl.dot(x.to(tl.float32), weight, total)
    high = weight.to(tl.bfloat16)
    low = (weight - high.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(x, low, tl.dot(x, high, total))


@triton.jit
def sum_parts(sums_ptr, place, parts_stride, mask, PARTS: tl.constexpr):
    """Sums over the parts of the numbers at ``place`` (offsets within the first part)."""
    total = tl.load(sums_ptr + place, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(sums_ptr + part * parts_stride + place, mask=mask, other=0.0)
    return total
