"""``x @ weight.T`` with a dense weight: one tile of the result a program.

Formed transposed like the product with FP8 weights, with the same division of the channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.product_tiles import (
    SUM_TYPE,
    add_product,
    after_launch_before,
    banded_tile,
    before_next_launch,
    hidden_zero,
    place_transposed,
    split_bound,
    store_transposed,
)


@triton.jit
def _sum_of_products(
    x_ptr, weight_ptr, row, out, split, x_row_stride, weight_row_stride,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """One part of the channels: ``[BLOCK_OUT, BLOCK_ROWS]`` float32."""
    total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), SUM_TYPE)
    first = split_bound(split, WIDTH, SPLITS)
    last = min(split_bound(split + 1, WIDTH, SPLITS), WIDTH)
    if SPLITS > 1:
        # A loop that turns at least once for sure keeps its products in flight (else the assembler's message C7515).
        last += hidden_zero()
        tl.assume(last > first)
    for start in range(first, last, BLOCK_IN):
        channel = start + tl.arange(0, BLOCK_IN)
        at_weight = weight_ptr + out[:, None] * weight_row_stride + channel[None, :]
        at_x = x_ptr + row[:, None] * x_row_stride + channel[None, :]
        if WIDTH % BLOCK_IN == 0:
            weight, x = tl.load(at_weight), tl.load(at_x)
        else:
            inside = (channel < WIDTH)[None, :]
            weight, x = tl.load(at_weight, mask=inside, other=0.0), tl.load(at_x, mask=inside, other=0.0)
        total = add_product(weight, x.to(weight.dtype).T, total)
    return total.to(tl.float32) * UNIT


@triton.jit
def dense_linear_kernel(
    x_ptr, weight_ptr, result_ptr, parked_ptr,
    num_rows, num_out, x_row_stride, weight_row_stride, result_row_stride,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, SPREAD: tl.constexpr, UNIT: tl.constexpr,
    PARKED: tl.constexpr, CHAINED: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_IN: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of the result, groups, and - where ``SPREAD`` - parts of the channels, each with a result of its own.

    Args:
        x_ptr: bfloat16 or float32 rows, group after group along the channels.
        weight_ptr: ``[groups * num_out, WIDTH]`` bfloat16, or float32: then the products are float32.
        result_ptr: ``[num_rows, groups * num_out]``; where ``SPREAD`` one float32 matrix for each part.
        parked_ptr: Where ``PARKED``, float32 of the result's shape.
        num_rows: Rows of x.
        num_out: Rows of the weight of a group.
        x_row_stride: Distance of rows in elements.
        weight_row_stride: Distance of rows in elements.
        result_row_stride: Distance of rows in elements.
        WIDTH: Channels of a group.
        SPLITS: Parts into which the channels are divided; their sums are added in order.
        SPREAD: Each part has its own programs.
        UNIT: The power of two in which the weight is counted.
        PARKED: A program makes all parts, and its sum waits in memory while it makes the next.
        CHAINED: See :func:`after_launch_before`.
        BLOCK_OUT: Rows of the weight of a tile.
        BLOCK_ROWS: Rows of x of a tile.
        BLOCK_IN: Channels of one round.
        BAND: Tiles along the rows of x that share weights while these are in the cache.
    """
    tile_out, tile_row = banded_tile(tl.program_id(0), tl.cdiv(num_out, BLOCK_OUT), tl.cdiv(num_rows, BLOCK_ROWS), BAND)
    group = tl.program_id(1)
    first_out, first_row = tile_out * BLOCK_OUT, tile_row * BLOCK_ROWS
    # Rows beyond the last repeat it: their results are not stored, and no load needs a mask.
    row = tl.minimum(first_row + tl.arange(0, BLOCK_ROWS), num_rows - 1).to(tl.int64)
    out = tl.minimum(first_out + tl.arange(0, BLOCK_OUT), num_out - 1).to(tl.int64)
    x_ptr += group * WIDTH
    weight_ptr += group.to(tl.int64) * num_out * weight_row_stride
    result_ptr += group * num_out
    parked_ptr += group * num_out
    before_next_launch(CHAINED)
    after_launch_before(CHAINED)
    if SPREAD:
        split = tl.program_id(2)
        result_ptr += split.to(tl.int64) * num_rows * result_row_stride
        total = _sum_of_products(
            x_ptr, weight_ptr, row, out, split, x_row_stride, weight_row_stride,
            WIDTH, SPLITS, UNIT, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
        )  # fmt: skip
        store_transposed(
            result_ptr, total, first_out, first_row, num_out, num_rows, result_row_stride, BLOCK_OUT, BLOCK_ROWS
        )
    elif PARKED:
        for split in range(SPLITS):
            total = _sum_of_products(
                x_ptr, weight_ptr, row, out, split, x_row_stride, weight_row_stride,
                WIDTH, SPLITS, UNIT, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
            )  # fmt: skip
            place_transposed(
                total, split, parked_ptr, result_ptr, first_out, first_row, num_out, num_rows, result_row_stride,
                SPLITS, BLOCK_OUT, BLOCK_ROWS,
            )  # fmt: skip
    else:
        total = _sum_of_products(
            x_ptr, weight_ptr, row, out, 0, x_row_stride, weight_row_stride,
            WIDTH, SPLITS, UNIT, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
        )  # fmt: skip
        for split in range(1, SPLITS):
            total += _sum_of_products(
                x_ptr, weight_ptr, row, out, split, x_row_stride, weight_row_stride,
                WIDTH, SPLITS, UNIT, BLOCK_OUT, BLOCK_ROWS, BLOCK_IN,
            )  # fmt: skip
        store_transposed(
            result_ptr, total, first_out, first_row, num_out, num_rows, result_row_stride, BLOCK_OUT, BLOCK_ROWS
        )
