"""Entries of rows -> slots of the cache, several rows for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def entry_slots_kernel(
    entries_ptr,
    row_sequence_ptr,
    block_table_ptr,
    slots_ptr,
    num_rows,
    table_stride,
    ENTRIES: tl.constexpr,
    ROWS_PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < num_rows)[:, None] & (column < ENTRIES)[None, :]
    at = row.to(tl.int64)[:, None] * ENTRIES + column[None, :]
    entry = tl.load(entries_ptr + at, mask=inside, other=-1)
    sequence = tl.maximum(tl.load(row_sequence_ptr + row, mask=row < num_rows, other=0), 0).to(tl.int64)
    table = block_table_ptr + sequence[:, None] * table_stride
    block = tl.load(table + entry // ROWS_PER_BLOCK, mask=entry >= 0, other=0)
    slot = tl.where(entry >= 0, block * ROWS_PER_BLOCK + entry % ROWS_PER_BLOCK, -1)
    tl.store(slots_ptr + at, slot, mask=inside)
