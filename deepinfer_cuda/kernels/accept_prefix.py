"""How many drafts of each sequence stand."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def accept_prefix_kernel(
    accepted_ptr, first_row_ptr, num_accepted_ptr, last_row_ptr, num_sequences, accepted_stride,
    DRAFTS: tl.constexpr, BLOCK: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    """The number of accepted drafts is the index of the first that is not, or of the end."""
    sequence = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    present = sequence < num_sequences
    draft = tl.arange(0, BLOCK)[None, :]
    offset = sequence.to(tl.int64)[:, None] * accepted_stride + draft
    accepted = tl.load(accepted_ptr + offset, mask=present[:, None] & (draft < DRAFTS), other=0)
    num_accepted = tl.min(tl.where(accepted != 0, DRAFTS, draft), 1)
    first_row = tl.load(first_row_ptr + sequence, mask=present, other=0)
    tl.store(num_accepted_ptr + sequence, num_accepted, mask=present)
    tl.store(last_row_ptr + sequence, first_row + num_accepted, mask=present)
