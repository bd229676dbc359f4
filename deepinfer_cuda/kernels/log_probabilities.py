"""From logits to log-probabilities by the temperature alone, without filters. Several programs share a row.

Three launches: the best token of each part of a row, the mass of each part, and the result. Masses are sums of
integers, so that nothing depends on the cut.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.kept_tokens import SUM_BITS, token_weight
from deepinfer_cuda.kernels.vocabulary_rows import best_id, part_maxima


@triton.jit
def best_of_parts_kernel(
    logits_ptr, best_ptr, tokens_ptr, row_stride,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The largest logit of a part of a row, NaN if it has one, and the lowest id that has it."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, last = part * PART, tl.minimum(part * PART + PART, VOCAB)
    best, token, is_nan = part_maxima(logits_ptr + row * row_stride, first, last, VOCAB, BLOCK, STAGES)
    largest, lowest = best_id(best, token, VOCAB)
    place = row * tl.num_programs(1) + part
    tl.store(best_ptr + place, tl.where(is_nan > 0, float("nan"), largest))
    tl.store(tokens_ptr + place, lowest)


@triton.jit
def _row(logits_ptr, temperature_ptr, best_ptr, row, row_stride, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """Of a row: where it begins, its temperature (float64), its largest logit, and whether it has NaN."""
    part = tl.arange(0, PADDED)
    best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=float("-inf"))
    is_nan = tl.max((best != best).to(tl.int32), 0) > 0
    largest = tl.max(tl.where(best == best, best, float("-inf")), 0)
    return logits_ptr + row * row_stride, tl.load(temperature_ptr + row).to(tl.float64), largest, is_nan


@triton.jit
def masses_kernel(
    logits_ptr, temperature_ptr, best_ptr, masses_ptr, row_stride,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The mass of a part of a row, as an integer; 0 where the row is greedy or refused."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row_ptr, temperature, best, is_nan = _row(logits_ptr, temperature_ptr, best_ptr, row, row_stride, PARTS, PADDED)
    largest = best.to(tl.float64)
    total = tl.zeros((BLOCK,), tl.int64)
    if (temperature > 0.0) & (is_nan == 0) & (tl.abs(best) < float("inf")):
        inverse = 1.0 / temperature
        for start in tl.range(part * PART, tl.minimum(part * PART + PART, VOCAB), BLOCK, num_stages=STAGES):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
            total += token_weight(x, largest, inverse)
    tl.store(masses_ptr + row * PARTS + part, tl.sum(total, 0))


@triton.jit
def log_probabilities_kernel(
    logits_ptr, temperature_ptr, best_ptr, tokens_ptr, masses_ptr, result_ptr, row_stride,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The log-probabilities of a part of a row: one-hot on its best token if it is greedy, NaN if it is refused."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row_ptr, temperature, best, is_nan = _row(logits_ptr, temperature_ptr, best_ptr, row, row_stride, PARTS, PADDED)
    is_sampled = temperature > 0.0
    inverse = 1.0 / tl.where(is_sampled, temperature, 1.0)
    is_refused = is_nan | (is_sampled & (tl.abs(best) == float("inf")))
    largest = best.to(tl.float64)

    parts = tl.arange(0, PADDED)
    masses = tl.load(masses_ptr + row * PARTS + parts, mask=parts < PARTS, other=0)
    mass = tl.sum(masses, 0)
    log_mass = tl.log(tl.where(mass > 0, mass, 1).to(tl.float64) * (2.0**-SUM_BITS))
    bests = tl.load(best_ptr + row * PARTS + parts, mask=parts < PARTS, other=float("-inf"))
    tokens = tl.load(tokens_ptr + row * PARTS + parts, mask=parts < PARTS, other=VOCAB)
    chosen = tl.min(tl.where(bests == best, tokens, VOCAB), 0)

    poison = tl.where(is_refused, float("nan"), 0.0)
    for start in tl.range(part * PART, tl.minimum(part * PART + PART, VOCAB), BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        logprob = ((x.to(tl.float64) - largest) * inverse - log_mass).to(tl.float32)
        one_hot = tl.where(column == chosen, 0.0, float("-inf"))
        tl.store(
            result_ptr + row * VOCAB + column, tl.where(is_sampled, logprob, one_hot) + poison, mask=column < VOCAB
        )
