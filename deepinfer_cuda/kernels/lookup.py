"""Rows of the n-gram memory, copied byte for byte."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lookup_kernel(
    rows_ptr, table_ptr, table_scales_ptr, values_ptr, scales_ptr, num_rows, table_stride, table_scales_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``rows_ptr`` is flat: one table row after the other; -1 gives zeros with scale 1 (the ue8m0 byte 127)."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = (number < num_rows)[:, None]
    row = tl.load(rows_ptr + number, mask=number < num_rows, other=-1).to(tl.int64)[:, None]
    found = row >= 0
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    values = tl.load(table_ptr + row * table_stride + column, mask=found & inside, other=0)
    tl.store(values_ptr + number[:, None] * WIDTH + column, values, mask=present & inside)
    group = tl.arange(0, BLOCK // GROUP)[None, :]
    inside = group < WIDTH // GROUP
    scales = tl.load(table_scales_ptr + row * table_scales_stride + group, mask=found & inside, other=127)
    tl.store(scales_ptr + number[:, None] * (WIDTH // GROUP) + group, scales, mask=present & inside)
