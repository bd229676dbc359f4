"""The best experts of each row by biased score, weighed by their own scores."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def select_experts_kernel(
    logits_ptr, bias_ptr, ids_ptr, weights_ptr, num_rows, logits_part_stride, logits_row_stride, scaling,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CHOSEN_BLOCK: tl.constexpr,
):  # fmt: skip
    """One program selects for ``ROWS`` rows; logits may come in parts that are summed in order."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)[None, :]
    inside = row < num_rows
    present = inside[:, None] & (expert < EXPERTS)
    logits = tl.zeros((ROWS, BLOCK), tl.float32)
    for part in tl.static_range(PARTS):
        pointer = logits_ptr + part * logits_part_stride + row[:, None] * logits_row_stride + expert
        logits += tl.load(pointer, mask=present, other=0.0)
    score = tl.sqrt_rn(_softplus(logits))
    bias = tl.load(bias_ptr + expert, mask=expert < EXPERTS, other=0.0)
    key = score + bias
    key = tl.where(key != key, float("inf"), key)  # NaN is taken first and shows in the weights
    left = expert < EXPERTS
    choice = tl.arange(0, CHOSEN_BLOCK)[None, :]
    ids = tl.zeros((ROWS, CHOSEN_BLOCK), tl.int32)
    scores = tl.zeros((ROWS, CHOSEN_BLOCK), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for number in tl.static_range(CHOSEN):
        best = tl.max(tl.where(left, key, float("-inf")), 1)
        best_id = tl.min(tl.where(left & (key == best[:, None]), expert, BLOCK), 1)
        taken = expert == best_id[:, None]
        best_score = tl.sum(tl.where(taken, score, 0.0), 1)
        left = left & (expert != best_id[:, None])
        ids = tl.where(choice == number, best_id[:, None], ids)
        scores = tl.where(choice == number, best_score[:, None], scores)
        total += best_score
    weights = tl.div_rn(scores, total[:, None] + 1e-20) * scaling
    offset = row[:, None] * CHOSEN + choice
    stored = inside[:, None] & (choice < CHOSEN)
    tl.store(ids_ptr + offset, ids, mask=stored)
    tl.store(weights_ptr + offset, weights, mask=stored)


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))`` to float32 accuracy: ``max(x, 0) + log1p(u)`` with ``u = exp(-|x|)``."""
    u = tl.exp(-tl.abs(x))
    # log1p(u) = 2 artanh(s), s = u / (2 + u) <= 1/3; the next term of the series is below 2^-25 of the sum.
    s = tl.div_rn(u, 2.0 + u)
    square = s * s
    series = 1.0 / 13.0 + square * (1.0 / 15.0)
    series = 1.0 / 11.0 + square * series
    series = 1.0 / 9.0 + square * series
    series = 1.0 / 7.0 + square * series
    series = 1.0 / 5.0 + square * series
    series = 1.0 / 3.0 + square * series
    log1p = 2.0 * s * (1.0 + square * series)
    return tl.where(x != x, x, tl.maximum(x, 0.0) + log1p)
