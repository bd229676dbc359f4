"""A packed FP8 weight as a plain bfloat16 matrix, for products of so many rows that decoding it once is cheaper."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.e4m3_operands import weight_tile
from deepinfer_cuda.kernels.product_tiles import before_next_launch


@triton.jit
def decode_weight_kernel(
    weight_ptr, factor_ptr, result_ptr, num_out, padded_out,
    WIDTH: tl.constexpr, CHAINED: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of a group along its rows, along the channels, groups.

    Args:
        weight_ptr: See :func:`weight_tile`; group after group along the rows.
        factor_ptr: See :func:`weight_tile`.
        result_ptr: ``[groups * num_out, WIDTH]`` bfloat16 in units of ``WEIGHT_UNIT``.
        num_out: Rows of a group, not counting padding.
        padded_out: Rows of a group as they are packed.
        WIDTH: Channels, padded.
        CHAINED: See :func:`before_next_launch`.
        BLOCK_OUT: Rows of a tile.
        BLOCK_IN: Channels of a tile.
    """
    before_next_launch(CHAINED)
    first_out, start, group = tl.program_id(0) * BLOCK_OUT, tl.program_id(1) * BLOCK_IN, tl.program_id(2).to(tl.int64)
    weight_ptr += group * padded_out * WIDTH
    factor_ptr += group * (padded_out // 32) * (WIDTH // 32)
    weight = weight_tile(weight_ptr, factor_ptr, first_out, start, WIDTH, BLOCK_OUT, BLOCK_IN)
    out = first_out + tl.arange(0, BLOCK_OUT)
    at = result_ptr + (group * num_out + out)[:, None] * WIDTH + start + tl.arange(0, BLOCK_IN)[None, :]
    tl.store(at, weight, mask=(out < num_out)[:, None])
