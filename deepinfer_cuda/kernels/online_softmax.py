"""Softmax over keys that arrive block by block, beside a sink that takes probability and gives no value.

Maxima and logits are in units of log2. The sink starts the running maximum and the running total, so both are
finite whether or not any key exists.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED, rounded

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-1e30)
"""Start of the maximum where the sink is turned off (minus infinity)."""


@triton.jit
def product(a, b, start):
    """``start`` plus the product of bfloat16 matrices, in float32."""
    if INTERPRETED:  # it takes the bits of bfloat16 operands for integers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), start)
    return tl.dot(a, b, start)


@triton.jit
def begin(sink_ptr, head, NUM_HEADS: tl.constexpr, KEYS: tl.constexpr):
    """Maximum ``[heads]`` and totals ``[heads, KEYS]`` before the first key.

    Totals stay apart for every place in a block, to be added up once behind the last block.
    """
    sink = tl.load(sink_ptr + head, mask=head < NUM_HEADS, other=0.0) * _LOG2_E
    maximum = tl.maximum(sink, _LOWEST)
    totals = tl.zeros((head.shape[0], KEYS), tl.float32) + tl.exp2(sink - maximum)[:, None] * (1.0 / KEYS)
    return maximum, totals


@triton.jit
def block_weights(dots, exists, maximum, totals, scale_log2):
    """Take in one more block of keys.

    Args:
        dots: ``[heads, keys]`` products of queries and keys.
        exists: ``[keys]``; others get no weight.
        maximum: Largest logit before ``[heads]``.
        totals: Sums of weights before ``[heads, keys]``.
        scale_log2: Factor of the logits times log2(e), positive.

    Returns:
        Weights ``[heads, keys]`` rounded to bfloat16, maximum and totals (of the weights before rounding) with this
        block, and the factor of everything that was summed relative to the old maximum.
    """
    dots = tl.where(exists[None, :], dots, -float("inf"))
    joint = tl.maximum(maximum, tl.max(dots, 1) * scale_log2)
    weights = tl.exp2(dots * scale_log2 - joint[:, None])
    factor = tl.exp2(maximum - joint)
    return rounded(weights, tl.bfloat16), joint, totals * factor[:, None] + weights, factor


@triton.jit
def share(total):
    """Factor of the sum of values that makes it the result; 0 where neither key nor sink has any weight."""
    return tl.where(total > 0.0, 1.0 / total, 0.0)


@triton.jit
def load_slots(slots_ptr, NUM_SLOTS: tl.constexpr):
    """All slots of a row, -1 behind them; to be asked for early, since loads of keys wait for their slots."""
    column = tl.arange(0, triton.next_power_of_2(NUM_SLOTS))
    return tl.load(slots_ptr + column, mask=column < NUM_SLOTS, other=-1)


@triton.jit
def used_blocks(slots, KEYS: tl.constexpr):
    """Blocks of ``KEYS`` slots up to the last one that is not -1."""
    column = tl.arange(0, slots.shape[0])
    return (tl.max(tl.where(slots >= 0, column + 1, 0), 0) + KEYS - 1) // KEYS
