"""Sampled tokens kept by state slot for the step that follows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def remember_tokens_kernel(token_ids_ptr, slots_ptr, latest_ptr, num_rows, stride, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    token = tl.load(token_ids_ptr + row, mask=inside, other=0)
    slot = tl.load(slots_ptr + row, mask=inside, other=-1)
    tl.store(latest_ptr + slot.to(tl.int64) * stride, token, mask=slot >= 0)
