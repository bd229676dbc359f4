"""Entries of rows -> rows of the gathered context, several rows for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def context_indices_kernel(
    entries_ptr,
    row_sequence_ptr,
    starts_ptr,
    indices_ptr,
    num_rows,
    ENTRIES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < num_rows)[:, None] & (column < ENTRIES)[None, :]
    at = row.to(tl.int64)[:, None] * ENTRIES + column[None, :]
    entry = tl.load(entries_ptr + at, mask=inside, other=-1)
    sequence = tl.maximum(tl.load(row_sequence_ptr + row, mask=row < num_rows, other=0), 0)
    start = tl.load(starts_ptr + sequence, mask=row < num_rows, other=0)
    tl.store(indices_ptr + at, tl.where(entry >= 0, entry + start[:, None], -1), mask=inside)
