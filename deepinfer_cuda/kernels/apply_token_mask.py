"""Logits without the tokens that a bit mask forbids."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply_token_mask_kernel(
    logits_ptr, mask_ptr, result_ptr, row_stride, mask_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    x = tl.load(logits_ptr + row * row_stride + column, mask=inside, other=0.0)
    word = tl.load(mask_ptr + row * mask_stride + column // 32, mask=inside, other=0)
    is_allowed = ((word >> (column % 32)) & 1) != 0
    tl.store(result_ptr + row * VOCAB + column, tl.where(is_allowed, x, float("-inf")), mask=inside)
