"""Ring slots that decode rows read and write, several rows for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def window_slots_kernel(
    positions_ptr,
    row_sequence_ptr,
    state_slots_ptr,
    slots_ptr,
    stores_ptr,
    num_rows,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    position = tl.load(positions_ptr + row, mask=inside, other=0)
    sequence = tl.load(row_sequence_ptr + row, mask=inside, other=-1)
    real = sequence >= 0
    base = tl.load(state_slots_ptr + sequence, mask=real, other=0) * RING
    length = tl.minimum(position + 1, WINDOW)
    column = tl.arange(0, COLUMNS)
    read = (position - length + 1)[:, None] + column[None, :]
    valid = real[:, None] & (column[None, :] < length[:, None])
    slots = tl.where(valid, base[:, None] + read % RING, -1)
    at = row.to(tl.int64)[:, None] * WINDOW + column[None, :]
    tl.store(slots_ptr + at, slots, mask=inside[:, None] & (column < WINDOW)[None, :])
    tl.store(stores_ptr + row, tl.where(real, base + position % RING, -1), mask=inside)
