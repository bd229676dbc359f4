"""The window of prompt rows over history and current rows: several rows or one sequence for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_before(query_lengths_ptr, sequence, num_sequences, SEQUENCES: tl.constexpr):
    """Rows of the sequences before each of ``sequence``."""
    total = tl.zeros_like(sequence)
    for first in range(0, num_sequences, SEQUENCES):
        other = first + tl.arange(0, SEQUENCES)
        length = tl.load(query_lengths_ptr + other, mask=other < num_sequences, other=0)
        total += tl.sum(tl.where(other[None, :] < sequence[:, None], length[None, :], 0), 1)
    return total


@triton.jit(do_not_specialize=["num_rows", "num_sequences"])
def window_indices_kernel(
    positions_ptr,
    row_sequence_ptr,
    state_slots_ptr,
    context_lengths_ptr,
    query_lengths_ptr,
    window_start_ptr,
    indices_ptr,
    history_ptr,
    stores_ptr,
    num_rows,
    num_sequences,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    FLOORED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    """Programs below ``num_sequences`` list the history of a sequence, the others ``ROWS`` rows each."""
    column = tl.arange(0, COLUMNS)
    program = tl.program_id(0)
    if program < num_sequences:
        begin = tl.load(context_lengths_ptr + program) - tl.load(query_lengths_ptr + program)
        before = begin - WINDOW + column
        oldest = 0
        if FLOORED:
            oldest = tl.maximum(tl.load(window_start_ptr + program), 0)
        past_slot = tl.load(state_slots_ptr + program) * RING + before % RING
        known = tl.where(before >= oldest, past_slot, -1)
        tl.store(history_ptr + program * WINDOW + column, known, mask=column < WINDOW)
    else:
        row = (program - num_sequences) * ROWS + tl.arange(0, ROWS)
        inside = row < num_rows
        position = tl.load(positions_ptr + row, mask=inside, other=0)
        sequence = tl.load(row_sequence_ptr + row, mask=inside, other=-1)
        real = sequence >= 0
        end = tl.load(context_lengths_ptr + sequence, mask=real, other=0)
        first = end - tl.load(query_lengths_ptr + sequence, mask=real, other=0)
        floor = tl.zeros_like(position)
        if FLOORED:
            floor = tl.maximum(tl.load(window_start_ptr + sequence, mask=real, other=0), 0)
        # Above the row's own position the floor leaves an empty window, and nothing is added to where it begins.
        length = tl.maximum(position + 1 - tl.maximum(position - WINDOW + 1, floor), 0)
        from_first = (position - length + 1 - first)[:, None] + column[None, :]
        start = rows_before(query_lengths_ptr, sequence, num_sequences, SEQUENCES)
        current = (num_sequences * WINDOW + start)[:, None] + from_first
        past = (sequence * WINDOW + WINDOW)[:, None] + from_first
        valid = real[:, None] & (column[None, :] < length[:, None])
        index = tl.where(valid, tl.where(from_first >= 0, current, past), -1)
        at = row.to(tl.int64)[:, None] * WINDOW + column[None, :]
        tl.store(indices_ptr + at, index, mask=inside[:, None] & (column < WINDOW)[None, :])
        slot = tl.load(state_slots_ptr + sequence, mask=real, other=0) * RING + position % RING
        kept = real & (position >= tl.maximum(end - RING, floor))
        tl.store(stores_ptr + row, tl.where(kept, slot, -1), mask=inside)
