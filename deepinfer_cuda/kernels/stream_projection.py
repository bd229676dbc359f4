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
def split_function_kernel(function_ptr, halves_ptr, stride, width, function_rows, BLOCK: tl.constexpr):
    """Cut float32 rows into two bfloat16 numbers each, side by side: row ``r`` becomes rows ``2 r`` and ``2 r + 1``.

    Program ``i`` takes columns ``i * BLOCK ..`` of ``[function_rows, width]``; ``halves [64, width]`` is filled up with
    zeros. Done once a call, so that the products read operands as they are.
    """
    output, column = tl.arange(0, SUMS)[:, None], tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < width
    weight = tl.load(function_ptr + output * stride + column, mask=(output < function_rows) & inside, other=0.0)
    high = _upper_half(weight)
    low = _upper_half(weight - high.to(tl.float32))
    tl.store(halves_ptr + 2 * output * width + column, high, mask=inside)
    tl.store(halves_ptr + (2 * output + 1) * width + column, low, mask=inside)


@triton.jit
def stream_projection_kernel(
    streams_ptr,
    mix_ptr,
    halves_ptr,
    collapsed_ptr,
    sums_ptr,
    streams_stride,
    mix_stride,
    num_rows,
    width,
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
        halves_ptr: ``[64, STREAMS * width]`` of ``split_function_kernel``.
        collapsed_ptr: ``[T, width]``, with ``COLLAPSE``.
        sums_ptr: ``[parts, T, 32]`` float32.
        streams_stride: Distance of rows in elements, as the other strides.
        mix_stride: See there.
        num_rows: T.
        width: Channels of a stream.
        STREAMS: Streams.
        PART: Channels of a part.
        BLOCK: Channels of one step.
        ROWS: Rows of a program.
        COLLAPSE: Whether to collapse as well.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = row < num_rows
    index = row.to(tl.int64)
    output, half = tl.arange(0, SUMS), tl.arange(0, 2 * SUMS)
    mixes = ()
    if COLLAPSE:
        for stream in tl.static_range(STREAMS):
            mixes += (tl.load(mix_ptr + index * mix_stride + stream, mask=real, other=0.0)[:, None],)
    products = tl.zeros([ROWS, 2 * SUMS], tl.float32)
    squares = tl.zeros([ROWS, BLOCK // 8], tl.float32)
    collapsed_squares = tl.zeros([ROWS, BLOCK // 8], tl.float32)
    for start in range(tl.program_id(0) * PART, tl.program_id(0) * PART + PART, BLOCK):
        channel = start + tl.arange(0, BLOCK)
        inside = channel < width
        if COLLAPSE:
            collapsed = tl.zeros([ROWS, BLOCK], tl.float32)
        for stream in tl.static_range(STREAMS):
            place = stream * width + channel
            x = tl.load(
                streams_ptr + index[:, None] * streams_stride + place[None, :],
                mask=real[:, None] & inside[None, :],
                other=0.0,
            )
            halves = tl.load(
                halves_ptr + half[:, None] * (STREAMS * width) + place[None, :], mask=inside[None, :], other=0.0
            )
            products = _add_products(x, halves, products)
            numbers = x.to(tl.float32)
            squares += _sums_of_eight(numbers * numbers)
            if COLLAPSE:
                collapsed += mixes[stream] * numbers
        if COLLAPSE:
            kept = _rounded_pairs(collapsed)
            target = collapsed_ptr + index[:, None] * width + channel[None, :]
            tl.store(target, kept, mask=real[:, None] & inside[None, :])
            numbers = kept.to(tl.float32)
            collapsed_squares += _sums_of_eight(numbers * numbers)
    sums = tl.sum(tl.reshape(products, [ROWS, SUMS, 2]), 2)
    sums = tl.where(output[None, :] == SQUARES, tl.sum(squares, 1)[:, None], sums)
    if COLLAPSE:
        sums = tl.where(output[None, :] == COLLAPSED_SQUARES, tl.sum(collapsed_squares, 1)[:, None], sums)
    target = sums_ptr + (tl.program_id(0).to(tl.int64) * num_rows + index)[:, None] * SUMS + output[None, :]
    tl.store(target, sums, mask=real[:, None])


@triton.jit
def _add_products(x, halves, total):
    """Add ``x @ halves.T`` to ``total [rows, 2 SUMS]``, whose pairs of columns are still to be added.

    Rows in bfloat16 are exact. Two halves are 16 bits of a weight's mantissa in all.
    """
    if INTERPRETED:
        # The host's matrix product would sum a row in an order that depends on the row's place.
        return total + tl.sum(x.to(tl.float32)[:, None, :] * halves.to(tl.float32)[None, :, :], 2)
    return tl.dot(x, tl.trans(halves), total)


@triton.jit
def _upper_half(x):
    """float32 numbers cut off to bfloat16: a move of bits, where rounding would be a slow conversion."""
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _rounded_pairs(x):
    """float32 numbers rounded to bfloat16, two an instruction also where the result is read again."""
    if INTERPRETED:
        return rounded(x, tl.bfloat16)
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def _sums_of_eight(x):
    """Sums of eight neighbours of a row, which one thread has as loaded."""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // 8, 8]), 2)


@triton.jit
def sum_parts(sums_ptr, place, parts_stride, mask, PARTS: tl.constexpr):
    """Sums over the parts of the numbers at ``place`` (offsets within the first part)."""
    total = tl.load(sums_ptr + place, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(sums_ptr + part * parts_stride + place, mask=mask, other=0.0)
    return total
