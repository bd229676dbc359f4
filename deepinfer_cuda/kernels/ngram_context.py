"""The n-gram context of every row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ngram_context_kernel(
    ids_ptr, positions_ptr, row_sequence_ptr, history_ptr, result_ptr, num_rows, history_stride, pad_id,
    LENGTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Tokens before a row come from the step as long as its sequence has rows there, else from the history."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = row < num_rows
    sequence = tl.load(row_sequence_ptr + row, mask=present, other=-1)
    own = tl.load(ids_ptr + row, mask=present, other=-1)
    position = tl.load(positions_ptr + row, mask=present, other=0)
    history = history_ptr + tl.maximum(sequence, 0).to(tl.int64) * history_stride
    result = result_ptr + row.to(tl.int64) * LENGTH
    hidden = (sequence < 0) | (own < 0)
    tl.store(result, tl.where(hidden, pad_id, own), mask=present)
    in_step = tl.zeros((ROWS,), tl.int32)
    for back in tl.static_range(1, LENGTH):
        earlier = tl.load(row_sequence_ptr + row - back, mask=present & (row >= back), other=-2)
        same = earlier == sequence
        from_step = tl.load(ids_ptr + row - back, mask=present & same, other=-1)
        place = tl.maximum(back - 1 - in_step, 0)
        from_history = tl.load(history + place, mask=present & (same == 0), other=-1)
        token = tl.where(same, from_step, from_history)
        hidden = hidden | (token < 0) | (position < back)
        tl.store(result + back, tl.where(hidden, pad_id, token), mask=present)
        in_step += same.to(tl.int32)
