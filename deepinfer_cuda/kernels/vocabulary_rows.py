"""Rows of logits: order, best token and fixed-point weights, for the kernels that hold one row in one program.

The rules are those of ``deepinfer_core.ops.sampling``: among equal logits (+0 and -0 are equal) the lower id comes
first, and weights are integers, so that no sum depends on the order in which it is made.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST_KEY = tl.constexpr(-(2**31))
"""Not above any key."""
HIGHEST_KEY = tl.constexpr(2**31 - 1)
"""Not below any key."""


@triton.jit
def order_key(x):
    """int32 numbers in the order of the float32 numbers; equal for +0 and -0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_order_key(key):
    """Inverse of :func:`order_key`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def fixed_point(x, BITS: tl.constexpr):
    """``floor(x * 2^BITS)`` as int64 for float64 ``x`` in [0, 1]; NaN counts as 0 and more than 1 as 1."""
    number = tl.where(x == x, x, 0.0)
    clamped = tl.minimum(tl.maximum(number, 0.0), 1.0)
    return tl.floor(clamped * (2.0**BITS)).to(tl.int64)


@triton.jit
def part_maxima(row_ptr, first, last, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Scan the columns of a row from ``first`` to ``last`` (not included) in blocks.

    Returns the largest logit that each lane met, the id of each (the lowest among equals), and for the part whether
    it has NaN (int32).
    """
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = first + lane
    is_nan = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        column = start + lane
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        is_better = x > best
        best = tl.where(is_better, x, best)
        place = tl.where(is_better, column, place)
        is_nan |= (x != x).to(tl.int32)
    return best, place, tl.max(is_nan, 0)


@triton.jit
def lane_maxima(row_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The same of a whole row."""
    return part_maxima(row_ptr, 0, VOCAB, VOCAB, BLOCK, STAGES)


@triton.jit
def best_id(best, place, VOCAB: tl.constexpr):
    """The largest logit of a row and the lowest id that has it, from its lane maxima."""
    largest = tl.max(best, 0)
    return largest, tl.min(tl.where(best == largest, place, VOCAB), 0)


@triton.jit
def uniform_below(total, words_high, words_low):
    """Integers in ``[0, total)`` of two random words, as ``deepinfer_core.ops.sampling.random`` defines them."""
    high = words_high.to(tl.int64) >> 1
    low = words_low.to(tl.int64) >> 1
    return (high * total + ((low * total) >> 31)) >> 31


@triton.jit
def random_words(seed, position, purpose):
    """Philox4x32-10 words (uint32) 0 and 1 of key ``seed`` and counter ``(position, purpose, 0, 0)``."""
    zero = position * 0
    word_0, word_1, _, _ = tl.philox(seed, position, zero + purpose, zero, zero)
    return word_0.to(tl.uint32, bitcast=True), word_1.to(tl.uint32, bitcast=True)
