"""Log-probability and rank of a chosen token, and the best tokens of each row in order."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.vocabulary_rows import best_id, fixed_point, lane_maxima, order_key

SUM_BITS = tl.constexpr(40)
"""As in ``deepinfer_core.ops.sampling.fixed_point``."""
_LOWEST = tl.constexpr(-(2**63))


@triton.jit
def _place(x, column):
    """int64 numbers whose descending order is that of the tokens, best first."""
    return (order_key(x).to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _mass_and_rank(row_ptr, largest, score, chosen, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Sum of the row's fixed-point exponentials, and how many tokens come before the chosen one."""
    mass = tl.zeros((BLOCK,), tl.int64)
    before = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        weight = fixed_point(tl.exp(x.to(tl.float64) - largest), SUM_BITS)
        mass += tl.where(column < VOCAB, weight, 0)
        is_before = (x > score) | ((x == score) & (column < chosen))
        before += (is_before & (column < VOCAB)).to(tl.int32)
    return tl.sum(mass, 0), tl.sum(before, 0)


@triton.jit
def top_logprobs_kernel(
    logits_ptr, ids_ptr, logprobs_ptr, ranks_ptr, best_logprobs_ptr, best_ids_ptr, row_stride,
    COUNT: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The best token is the best of the lanes' best; then its lane, one column of each block, is asked for the next."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    best, place, is_nan = lane_maxima(row_ptr, VOCAB, BLOCK, STAGES)
    largest, _ = best_id(best, place, VOCAB)
    largest = tl.where(is_nan != 0, float("nan"), largest).to(tl.float64)
    chosen = tl.maximum(tl.load(ids_ptr + row), 0)
    score = tl.load(row_ptr + chosen)
    mass, before = _mass_and_rank(row_ptr, largest, score, chosen, VOCAB, BLOCK, STAGES)
    shift = largest + tl.log(mass.to(tl.float64) * (2.0**-SUM_BITS))
    tl.store(logprobs_ptr + row, (score.to(tl.float64) - shift).to(tl.float32))
    tl.store(ranks_ptr + row, before + 1)
    lane = tl.arange(0, BLOCK)
    places = tl.where(lane < VOCAB, _place(best, place), _LOWEST)
    for number in range(COUNT):
        first = tl.max(places, 0)
        token = 0x7FFFFFFF - (first & 0x7FFFFFFF).to(tl.int32)
        logit = tl.load(row_ptr + token)
        tl.store(best_logprobs_ptr + row * COUNT + number, (logit.to(tl.float64) - shift).to(tl.float32))
        tl.store(best_ids_ptr + row * COUNT + number, token)
        column = token % BLOCK + tl.arange(0, BLOCKS) * BLOCK
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        others = _place(x, column)
        refill = tl.max(tl.where((column < VOCAB) & (others < first), others, _LOWEST), 0)
        places = tl.where(lane == token % BLOCK, refill, places)
