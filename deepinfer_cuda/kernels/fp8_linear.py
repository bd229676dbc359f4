"""``x @ weight.T`` with an FP8 weight: one tile of the result a program, weights decoded in registers.

The product is formed transposed, ``weight @ x.T``: so the decoded operand is the one that the matrix unit takes from
registers, and few rows of ``x`` waste nothing. The order of summation over channels depends on the weight alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.e4m3_operands import PADDED_ROWS, WEIGHT_UNIT, settled, weight_tile
from deepinfer_cuda.kernels.number_formats import e4m3_to_float, power_of_two
from deepinfer_cuda.kernels.product_tiles import (
    SUM_TYPE,
    add_product,
    after_launch_before,
    banded_tile,
    before_next_launch,
    split_bound,
    store_transposed,
)


@triton.jit
def _scaled_rows(x_ptr, scale_ptr, row, start, x_row_stride, scale_row_stride, BLOCK_ROWS: tl.constexpr):
    """Channels ``start .. start + 127`` of MXFP8 rows as bfloat16; a row's four scales are one word."""
    channel = start + tl.arange(0, 128)
    data = tl.load(x_ptr + row[:, None] * x_row_stride + channel[None, :]).reshape(BLOCK_ROWS, 4, 32)
    word = tl.load(scale_ptr + row * scale_row_stride + start // 128)
    byte = (word[:, None] >> (8 * tl.arange(0, 4))[None, :]) & 0xFF
    # By way of float32: unlike the weights' short cut it keeps NaN, and takes any scale.
    return (e4m3_to_float(data) * power_of_two(byte)[:, :, None]).to(tl.bfloat16).reshape(BLOCK_ROWS, 128)


@triton.jit
def _dense_rows(x_ptr, row, start, x_row_stride, WIDTH: tl.constexpr, X_WIDTH: tl.constexpr, BLOCK_IN: tl.constexpr):
    """Channels of bfloat16 rows; zeros beyond their end, where the weight is padded."""
    channel = start + tl.arange(0, BLOCK_IN)
    at = x_ptr + row[:, None] * x_row_stride + channel[None, :]
    if X_WIDTH == WIDTH:
        return tl.load(at)
    return tl.load(at, mask=(channel < X_WIDTH)[None, :], other=0.0)


@triton.jit
def _sum_of_products(
    x_ptr, scale_ptr, weight_ptr, factor_ptr, row, first_out, split, x_row_stride, scale_row_stride,
    WIDTH: tl.constexpr, X_WIDTH: tl.constexpr, SPLITS: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """One part of the channels: ``[BLOCK_OUT, BLOCK_ROWS]`` float32."""
    total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), SUM_TYPE)
    first = split_bound(split, WIDTH, SPLITS) // BLOCK_IN
    last = split_bound(split + 1, WIDTH, SPLITS) // BLOCK_IN
    for tile in range(first, last):
        start = tile * BLOCK_IN
        weight = weight_tile(weight_ptr, factor_ptr, first_out, start, WIDTH, BLOCK_OUT, BLOCK_IN)
        if SCALED:
            x = _scaled_rows(x_ptr, scale_ptr, row, start, x_row_stride, scale_row_stride, BLOCK_ROWS)
        else:
            x = _dense_rows(x_ptr, row, start, x_row_stride, WIDTH, X_WIDTH, BLOCK_IN)
        total = settled(add_product(weight, x.T, total))
    return total.to(tl.float32) * WEIGHT_UNIT


@triton.jit
def fp8_linear_kernel(
    x_ptr, scale_ptr, weight_ptr, factor_ptr, result_ptr,
    num_rows, num_out, x_row_stride, scale_row_stride, result_row_stride,
    WIDTH: tl.constexpr, X_WIDTH: tl.constexpr, SPLITS: tl.constexpr, SPREAD: tl.constexpr, SCALED: tl.constexpr,
    CHAINED: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_IN: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of the result, groups, and - where ``SPREAD`` - parts of the channels, each with a result of its own.

    Args:
        x_ptr: bfloat16 rows, or e4m3 rows where ``SCALED``; group after group along the channels.
        scale_ptr: Words of four scale bytes, where ``SCALED``.
        weight_ptr: See :func:`weight_tile`; group after group along the rows.
        factor_ptr: See :func:`weight_tile`.
        result_ptr: ``[num_rows, groups * num_out]``; where ``SPREAD`` one float32 matrix for each part.
        num_rows: Rows of x.
        num_out: Rows of the weight of a group, not counting padding.
        x_row_stride: Distance of rows in elements.
        scale_row_stride: Distance of rows in words.
        result_row_stride: Distance of rows in elements.
        WIDTH: Channels of a group as the weight has them, padded.
        X_WIDTH: Channels of a group as x has them.
        SPLITS: Parts into which the channels are divided; their sums are added in order.
        SPREAD: Each part has its own programs.
        SCALED: x is MXFP8.
        CHAINED: See :func:`after_launch_before`.
        BLOCK_OUT: Rows of the weight of a tile.
        BLOCK_ROWS: Rows of x of a tile.
        BLOCK_IN: Channels of one round.
        BAND: Tiles along the rows of x that share weights while these are in the cache.
    """
    tl.static_assert(BLOCK_OUT <= PADDED_ROWS)
    tile_out, tile_row = banded_tile(tl.program_id(0), tl.cdiv(num_out, BLOCK_OUT), tl.cdiv(num_rows, BLOCK_ROWS), BAND)
    group = tl.program_id(1)
    first_out, first_row = tile_out * BLOCK_OUT, tile_row * BLOCK_ROWS
    # Rows beyond the last repeat it: their results are not stored, and no load needs a mask.
    row = tl.minimum(first_row + tl.arange(0, BLOCK_ROWS), num_rows - 1).to(tl.int64)
    padded_out = tl.cdiv(num_out, PADDED_ROWS) * PADDED_ROWS
    x_ptr += group * X_WIDTH
    scale_ptr += group * (X_WIDTH // 128)
    weight_ptr += group.to(tl.int64) * padded_out * WIDTH
    factor_ptr += group * (padded_out // 32) * (WIDTH // 32)
    result_ptr += group * num_out
    before_next_launch(CHAINED)
    after_launch_before(CHAINED)
    if SPREAD:
        split = tl.program_id(2)
        result_ptr += split.to(tl.int64) * num_rows * result_row_stride
        total = _sum_of_products(
            x_ptr, scale_ptr, weight_ptr, factor_ptr, row, first_out, split, x_row_stride, scale_row_stride,
            WIDTH, X_WIDTH, SPLITS, SCALED, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
        )  # fmt: skip
        store_transposed(
            result_ptr, total, first_out, first_row, num_out, num_rows, result_row_stride, BLOCK_OUT, BLOCK_ROWS
        )
    else:
        total = _sum_of_products(
            x_ptr, scale_ptr, weight_ptr, factor_ptr, row, first_out, 0, x_row_stride, scale_row_stride,
            WIDTH, X_WIDTH, SPLITS, SCALED, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
        )  # fmt: skip
        for split in range(1, SPLITS):
            total += _sum_of_products(
                x_ptr, scale_ptr, weight_ptr, factor_ptr, row, first_out, split, x_row_stride, scale_row_stride,
                WIDTH, X_WIDTH, SPLITS, SCALED, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
            )  # fmt: skip
        store_transposed(
            result_ptr, total, first_out, first_row, num_out, num_rows, result_row_stride, BLOCK_OUT, BLOCK_ROWS
        )
