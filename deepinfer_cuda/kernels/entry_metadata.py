"""Compressed entries that rows see and store, many rows for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])
def entry_metadata_kernel(
    positions_ptr,
    row_sequence_ptr,
    block_table_ptr,
    store_from_ptr,
    visible_ptr,
    slots_ptr,
    entry_positions_ptr,
    num_rows,
    table_stride,
    num_blocks,
    RATIO: tl.constexpr,
    LIMITED: tl.constexpr,
    ROWS_PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    position = tl.load(positions_ptr + row, mask=inside, other=0)
    sequence = tl.load(row_sequence_ptr + row, mask=inside, other=-1)
    real = sequence >= 0
    closes = real & ((position + 1) % RATIO == 0)
    if LIMITED:
        closes = closes & (position >= tl.load(store_from_ptr + sequence, mask=real, other=0))
    entry = tl.where(closes, position // RATIO, 0)
    column = tl.minimum(entry // ROWS_PER_BLOCK, num_blocks - 1)
    block = tl.load(block_table_ptr + sequence.to(tl.int64) * table_stride + column, mask=closes, other=0)
    slot = tl.where(closes, block * ROWS_PER_BLOCK + entry % ROWS_PER_BLOCK, -1)
    tl.store(visible_ptr + row, tl.where(real, (position + 1) // RATIO, 0), mask=inside)
    tl.store(slots_ptr + row, slot, mask=inside)
    tl.store(entry_positions_ptr + row, entry * RATIO, mask=inside)
