"""Logits of tokens that have occurred, made less likely."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply_penalties_kernel(
    logits_ptr, counts_ptr, in_prompt_ptr, repetition_ptr, presence_ptr, frequency_ptr, result_ptr,
    row_stride, counts_stride, in_prompt_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    x = tl.load(logits_ptr + row * row_stride + column, mask=inside, other=0.0)
    count = tl.load(counts_ptr + row * counts_stride + column, mask=inside, other=0)
    in_prompt = tl.load(in_prompt_ptr + row * in_prompt_stride + column, mask=inside, other=0) != 0
    in_output = count > 0
    repetition = tl.load(repetition_ptr + row)
    repeated = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
    x = tl.where(in_prompt | in_output, repeated, x)
    x -= tl.load(frequency_ptr + row) * count.to(tl.float32)
    x -= tl.load(presence_ptr + row) * in_output.to(tl.float32)
    tl.store(result_ptr + row * VOCAB + column, x, mask=inside)
