"""Scores of the columns of candidate blocks, side by side."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def candidate_scores_kernel(
    scores_ptr,
    lengths_ptr,
    candidates_ptr,
    compact_ptr,
    counts_ptr,
    scores_stride,
    candidates_stride,
    width,
    num_candidates,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Program ``(t, i)`` writes ``BLOCK`` compact columns of row ``t``; the first one counts those that are real."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    candidates = candidates_ptr + row * candidates_stride
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    block = tl.load(candidates + column // SIZE, mask=column < width, other=-1)
    entry = block * SIZE + column % SIZE
    real = (block >= 0) & (entry < length)
    score = tl.load(scores_ptr + row * scores_stride + entry, mask=real, other=float("-inf"))
    tl.store(compact_ptr + row * width + column, score, mask=column < width)
    if tl.program_id(1) == 0:
        index = tl.arange(0, CANDIDATES)
        each = tl.load(candidates + index, mask=index < num_candidates, other=-1)
        seen = tl.where(each >= 0, tl.minimum(tl.maximum(length - each * SIZE, 0), SIZE), 0)
        tl.store(counts_ptr + row, tl.sum(seen, 0))
