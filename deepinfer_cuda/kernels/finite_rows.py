"""Which rows of logits define a distribution."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finite_rows_kernel(
    logits_ptr, result_ptr, row_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    is_refused = tl.zeros((BLOCK,), tl.int32)
    is_possible = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=STAGES):
        column = start + lane
        x = tl.load(logits_ptr + row * row_stride + column, mask=column < VOCAB, other=float("-inf"))
        is_refused |= ((x != x) | (x == float("inf"))).to(tl.int32)
        is_possible |= (x > float("-inf")).to(tl.int32)
    is_finite = (tl.max(is_refused, 0) == 0) & (tl.max(is_possible, 0) != 0)
    tl.store(result_ptr + row, is_finite.to(tl.uint8))
