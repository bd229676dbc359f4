"""The most likely token of each row."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.vocabulary_rows import best_id, lane_maxima


@triton.jit
def greedy_kernel(logits_ptr, result_ptr, row_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best, place, is_nan = lane_maxima(logits_ptr + row * row_stride, VOCAB, BLOCK, STAGES)
    _, token = best_id(best, place, VOCAB)
    tl.store(result_ptr + row, tl.where(is_nan != 0, -1, token))
