"""Logits with a few numbers added."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply_logit_bias_kernel(
    logits_ptr, ids_ptr, values_ptr, result_ptr, num_places, row_stride, ids_stride, values_stride,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """A program copies its part of the row, then rewrites the tokens in it that have a bias."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    logits_ptr += row * row_stride
    result_ptr += row * VOCAB
    column = start + tl.arange(0, BLOCK)
    inside = column < VOCAB
    tl.store(result_ptr + column, tl.load(logits_ptr + column, mask=inside), mask=inside)
    tl.debug_barrier()
    for first in range(0, num_places, PLACES):
        place = first + tl.arange(0, PLACES)
        token = tl.load(ids_ptr + row * ids_stride + place, mask=place < num_places, other=-1)
        is_here = (token >= start) & (token < start + BLOCK)
        value = tl.load(values_ptr + row * values_stride + place, mask=is_here, other=0.0)
        x = tl.load(logits_ptr + token, mask=is_here, other=0.0)
        tl.store(result_ptr + token, x + value, mask=is_here)
