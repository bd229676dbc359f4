"""Slots of all entries of all sequences, one sequence after the other; many entries for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total", "num_sequences"])
def context_gather_kernel(
    context_lengths_ptr,
    block_table_ptr,
    slots_ptr,
    starts_ptr,
    total,
    num_sequences,
    table_stride,
    RATIO: tl.constexpr,
    ROWS_PER_BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """Every program walks over the sequences, of which prefill has few; the first one notes where they begin."""
    row = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    sequence = tl.zeros_like(row)
    start_of_row = tl.zeros_like(row)
    start = 0
    for candidate in range(num_sequences):
        if tl.program_id(0) == 0:
            tl.store(starts_ptr + candidate, start)
        begun = row >= start
        sequence = tl.where(begun, candidate, sequence)
        start_of_row = tl.where(begun, start, start_of_row)
        start += tl.load(context_lengths_ptr + candidate) // RATIO
    entry = row - start_of_row
    inside = row < total
    table = block_table_ptr + sequence.to(tl.int64) * table_stride
    block = tl.load(table + entry // ROWS_PER_BLOCK, mask=inside, other=0)
    tl.store(slots_ptr + row, block * ROWS_PER_BLOCK + entry % ROWS_PER_BLOCK, mask=inside)
