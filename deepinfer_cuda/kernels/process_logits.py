"""From logits to the log-probabilities that a token is drawn from: temperature, and top-k, top-p or min-p."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.kept_tokens import (
    SUM_BITS,
    is_kept,
    kept_mass,
    last_within,
    list_candidates,
    token_weight,
    top_k_cut,
)
from deepinfer_cuda.kernels.vocabulary_rows import (
    HIGHEST_KEY,
    LOWEST_KEY,
    best_id,
    from_order_key,
    lane_maxima,
    order_key,
)


@triton.jit
def _mass(row_ptr, largest, inverse_temperature, least, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Mass of the tokens of the whole row that weigh ``least`` (float64) or more, and the lowest key of these."""
    total = tl.zeros((BLOCK,), tl.int64)
    lowest = tl.full((BLOCK,), HIGHEST_KEY, tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        weight = token_weight(x, largest, inverse_temperature)
        counted = weight.to(tl.float64) >= least
        total += tl.where(counted, weight, 0)
        lowest = tl.where(counted & (column < VOCAB), tl.minimum(lowest, order_key(x)), lowest)
    return tl.sum(total, 0), tl.min(lowest, 0)


@triton.jit
def _top_p_cut(largest, temperature, top_p, mass, VOCAB: tl.constexpr):
    """A logit that every token kept by top-p reaches: those below weigh less than ``1 - top_p`` of the mass together.

    Half of what would do, so that no rounding matters.
    """
    return largest + temperature * tl.log(0.5 * (1.0 - top_p) * mass.to(tl.float64) * (2.0**-SUM_BITS) / VOCAB)


@triton.jit(do_not_specialize=["filters"])
def process_logits_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, result_ptr, list_ptr, row_stride,
    filters,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program a row. ``list_ptr`` is the result's memory: its rows hold ids until the end.

    Which filters there are (1 top-k, 2 top-p, 4 min-p) is known when it runs, so that one kernel is compiled.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    list_ptr += row * VOCAB
    temperature = tl.load(temperature_ptr + row).to(tl.float64)
    is_sampled = temperature > 0.0
    inverse = 1.0 / tl.where(is_sampled, temperature, 1.0)

    best, place, is_nan = lane_maxima(row_ptr, VOCAB, BLOCK, STAGES)
    best_logit, best_token = best_id(best, place, VOCAB)
    largest = best_logit.to(tl.float64)
    is_refused = (is_nan != 0) | (is_sampled & (tl.abs(best_logit) == float("inf")))
    is_filtered = is_sampled & (is_refused == 0)
    # All tokens are kept, or the best alone when the row is greedy.
    last_key = tl.where(is_sampled, LOWEST_KEY, order_key(best_logit))
    last_id = tl.where(is_sampled, VOCAB, best_token)
    num_listed = best_token * 0

    top_k = tl.load(top_k_ptr + row, mask=(filters & 1) != 0, other=0)
    if is_filtered & (top_k > 0) & (top_k < VOCAB):
        cut = top_k_cut(best, best_logit, top_k)
        num_listed = list_candidates(row_ptr, list_ptr, cut, VOCAB, BLOCK, STAGES)
        scan = (row_ptr, list_ptr, num_listed, largest, inverse)
        last_key, last_id = last_within(scan, cut, (top_k - 1).to(tl.float64), last_key, last_id, False, BLOCK)
    top_p = tl.load(top_p_ptr + row, mask=(filters & 2) != 0, other=1.0).to(tl.float64)
    if is_filtered & (top_p < 1.0):
        if num_listed == 0:
            mass, _ = _mass(row_ptr, largest, inverse, 0.0, VOCAB, BLOCK, STAGES)
            cut = _top_p_cut(largest, temperature, top_p, mass, VOCAB)
            num_listed = list_candidates(row_ptr, list_ptr, cut, VOCAB, BLOCK, STAGES)
        else:
            scan = (row_ptr, list_ptr, num_listed, largest, inverse)
            mass, _ = kept_mass(scan, last_key, last_id, 0.0, BLOCK)
            cut = from_order_key(last_key).to(tl.float64)
        scan = (row_ptr, list_ptr, num_listed, largest, inverse)
        bound = top_p * mass.to(tl.float64)
        last_key, last_id = last_within(scan, cut, bound, last_key, last_id, True, BLOCK)
    least = tl.load(min_p_ptr + row, mask=(filters & 4) != 0, other=0.0).to(tl.float64) * (2.0**SUM_BITS)

    log_mass = largest * 0.0
    if is_filtered:
        if num_listed == 0:
            mass, lowest = _mass(row_ptr, largest, inverse, least, VOCAB, BLOCK, STAGES)
        else:
            scan = (row_ptr, list_ptr, num_listed, largest, inverse)
            mass, lowest = kept_mass(scan, last_key, last_id, least, BLOCK)
        # Weights rise with the key: what weighs enough is a prefix too.
        last_id = tl.where(lowest > last_key, VOCAB, last_id)
        last_key = tl.maximum(lowest, last_key)
        log_mass = tl.log(mass.to(tl.float64) * (2.0**-SUM_BITS))
    poison = tl.where(is_refused, float("nan"), 0.0)
    tl.debug_barrier()
    for start in tl.range(0, VOCAB, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        kept = is_kept(order_key(x), column, last_key, last_id)
        score = tl.where(is_sampled, (x.to(tl.float64) - largest) * inverse, 0.0)
        logprob = tl.where(kept, (score - log_mass).to(tl.float32), float("-inf")) + poison
        tl.store(result_ptr + row * VOCAB + column, logprob, mask=column < VOCAB)
