"""Values of quantised rows."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import decode_tile
from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def dequantize_kernel(
    values_ptr, scales_ptr, result_ptr, num_rows, values_row_stride, scales_row_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    PACKED: tl.constexpr = 1 if FORMAT == "mxfp8" else 2
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * BLOCK
    inside = (row < num_rows)[:, None]
    byte = start // PACKED + tl.arange(0, BLOCK // PACKED)[None, :]
    present = inside & (byte < WIDTH // PACKED)
    values = tl.load(values_ptr + row[:, None] * values_row_stride + byte, mask=present, other=0)
    group = start // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
    present = inside & (group < WIDTH // GROUP)
    scales = tl.load(scales_ptr + row[:, None] * scales_row_stride + group, mask=present, other=0)
    x = decode_tile(values, scales, FORMAT, GROUP, ROWS, BLOCK)
    column = start + tl.arange(0, BLOCK)[None, :]
    tl.store(
        result_ptr + row[:, None] * WIDTH + column, rounded(x, result_ptr.dtype.element_ty),
        mask=inside & (column < WIDTH),
    )  # fmt: skip
