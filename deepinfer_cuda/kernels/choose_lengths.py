"""A budget of verification rows shared among sequences."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _survival(confidence_ptr, stride, limits_ptr, sequence, present, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Chance that the drafts up to each one all stand, ``[sequences, BLOCK]``; -1 for those that may not be verified.

    Products are made in float64, in order, and rounded once, as the reference does on the CPU.
    """
    step = tl.arange(0, BLOCK)[None, :]
    limit = tl.load(limits_ptr + sequence, mask=present, other=0)
    product = tl.full(sequence.shape, 1.0, tl.float64)
    survival = tl.full((sequence.shape[0], BLOCK), -1.0, tl.float32)
    for number in tl.static_range(STEPS):
        factor = tl.load(confidence_ptr + sequence.to(tl.int64) * stride + number, mask=present, other=0.0)
        product *= factor.to(tl.float64)
        survival = tl.where(step == number, product.to(tl.float32)[:, None], survival)
    return tl.where(step < limit[:, None], survival, -1.0)


@triton.jit
def choose_lengths_kernel(
    confidence_ptr, limits_ptr, budget_ptr, result_ptr, num_sequences, stride,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """A program counts, for each draft of its sequences, the drafts of all sequences that come before it."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    present = own < num_sequences
    mine = _survival(confidence_ptr, stride, limits_ptr, own, present, STEPS, BLOCK)
    step = tl.arange(0, BLOCK)
    order = step[None, :] * num_sequences + own[:, None]
    mine_flat = tl.reshape(mine, (OWN * BLOCK, 1))
    order_flat = tl.reshape(order, (OWN * BLOCK, 1))
    place = tl.zeros((OWN * BLOCK,), tl.int32)
    for start in range(0, num_sequences, OTHERS):
        other = start + tl.arange(0, OTHERS)
        theirs = _survival(confidence_ptr, stride, limits_ptr, other, other < num_sequences, STEPS, BLOCK)
        theirs_flat = tl.reshape(theirs, (1, OTHERS * BLOCK))
        their_order = tl.reshape(step[None, :] * num_sequences + other[:, None], (1, OTHERS * BLOCK))
        is_before = (theirs_flat > mine_flat) | ((theirs_flat == mine_flat) & (their_order < order_flat))
        place += tl.sum((is_before & (theirs_flat >= 0.0)).to(tl.int32), 1)
    taken = (tl.reshape(place, (OWN, BLOCK)) < tl.load(budget_ptr)) & (mine >= 0.0)
    tl.store(result_ptr + own, tl.sum(taken.to(tl.int32), 1), mask=present)
