"""Rows to a quantised format."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import round_tile


@triton.jit
def store_rounded(
    values_ptr, scales_ptr, x, row, num_rows, start, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Round columns ``start ..`` of dense rows and store their bytes; ``start`` is a multiple of the group."""
    PACKED: tl.constexpr = 1 if FORMAT == "mxfp8" else 2
    values, scales = round_tile(x, FORMAT, GROUP, ROWS, BLOCK)
    inside = (row < num_rows)[:, None]
    byte = start // PACKED + tl.arange(0, BLOCK // PACKED)[None, :]
    begin = row[:, None] * (WIDTH // PACKED)
    tl.store(values_ptr + begin + byte, values, mask=inside & (byte < WIDTH // PACKED))
    group = start // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
    tl.store(scales_ptr + row[:, None] * (WIDTH // GROUP) + group, scales, mask=inside & (group < WIDTH // GROUP))


@triton.jit
def quantize_kernel(
    x_ptr, values_ptr, scales_ptr, num_rows, x_row_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * BLOCK
    column = start + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows)[:, None] & (column < WIDTH)
    x = tl.load(x_ptr + row[:, None] * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    store_rounded(values_ptr, scales_ptr, x, row, num_rows, start, WIDTH, BLOCK, ROWS, FORMAT, GROUP)
