"""Tokens that the sampler left on the device, put into the rows that wait for them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def resolve_tokens_kernel(
    ids_ptr,
    compressed_ids_ptr,
    row_sequence_ptr,
    state_slots_ptr,
    latest_ptr,
    compressed_map_ptr,
    tokens_ptr,
    compressed_ptr,
    num_rows,
    PENDING: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    token = tl.load(ids_ptr + row, mask=inside, other=0)
    compressed = tl.load(compressed_ids_ptr + row, mask=inside, other=0)
    sequence = tl.load(row_sequence_ptr + row, mask=inside, other=-1)
    pending = (token == PENDING) & (sequence >= 0)
    slot = tl.load(state_slots_ptr + sequence, mask=pending, other=0)
    sampled = tl.load(latest_ptr + slot, mask=pending, other=0)
    sampled = tl.where(sampled < 0, 0, sampled)
    of_sampled = tl.load(compressed_map_ptr + sampled, mask=pending, other=0)
    tl.store(tokens_ptr + row, tl.where(pending, sampled, token), mask=inside)
    tl.store(compressed_ptr + row, tl.where(pending, of_sampled, compressed), mask=inside)
