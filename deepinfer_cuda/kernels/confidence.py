"""How likely a draft is to be accepted."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(x_ptr, weight_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Product of two dense vectors, in blocks."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    return tl.sum(total, 0)


@triton.jit
def confidence_kernel(
    hidden_ptr, previous_ptr, embedding_ptr, weight_ptr, logits_ptr, chances_ptr,
    hidden_stride, embedding_stride, inverse_temperature, largest,
    WIDTH: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(previous_ptr + row).to(tl.int64)
    logit = _dot(hidden_ptr + row * hidden_stride, weight_ptr, WIDTH, BLOCK)
    logit += _dot(embedding_ptr + token * embedding_stride, weight_ptr + WIDTH, RANK, BLOCK)
    scaled = logit * inverse_temperature
    scaled = tl.where(scaled > largest, largest, tl.where(scaled < -largest, -largest, scaled))
    tl.store(logits_ptr + row, logit)
    tl.store(chances_ptr + row, 1.0 / (1.0 + tl.exp(-scaled)))
