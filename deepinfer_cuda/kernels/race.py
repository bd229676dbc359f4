"""A token of each row drawn by an exponential race; the definition is ``deepinfer_core.ops.sampling.arrivals``.

Programs share a row: each finds the first token of its part, then one looks at what they found. Times are exact, so
that nothing depends on the cut. A block is looked at in float64 only when a bound in float32 says that one of its
tokens may come before all that the program has met.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from deepinfer_cuda.kernels.number_formats import INTERPRETED
from deepinfer_cuda.kernels.vocabulary_rows import fixed_point

DRAW_BITS = tl.constexpr(31)
"""As in ``deepinfer_core.ops.sampling.fixed_point``."""
LEAST = tl.constexpr(-21.5)
"""Not above the log-probability of any token with a weight; ``exp`` of it times 2^31 is 0.988."""
TERMS = tl.constexpr(10)
"""Terms of the series of ``atanh``."""
LN2 = tl.constexpr(0.6931471805599453)
LOWEST_MANTISSA_BITS = tl.constexpr(0x3FE6A00000000000)
"""The bits of 181/256."""


@triton.jit
def _product(a, b):
    """The product of float64 numbers, rounded by itself: the compiler may not fuse it with a sum that takes it."""
    if INTERPRETED:
        return a * b
    return libdevice.mul_rn(a, b)


@triton.jit
def exponential(high, low):
    """Float64 exponential numbers of the words (uint32) of tokens, operation by operation as core defines them."""
    odd = ((high.to(tl.int64) >> 1) << 32) | ((low.to(tl.int64) >> 1) << 1) | 1
    x = odd.to(tl.float64) * (2.0**-63)
    y = (0x7FFFFFFFFFFFFFFF - odd + 1).to(tl.float64) * (2.0**-63)
    bits = y.to(tl.int64, bitcast=True)
    exponent = (bits - LOWEST_MANTISSA_BITS) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    s = tl.where(exponent == 0, x, 1.0 - m) / (1.0 + m)
    square = _product(s, s)
    series = tl.zeros_like(s) + 1.0 / (2 * TERMS - 1)
    for term in tl.static_range(TERMS - 2, -1, -1):
        series = _product(series, square) + 1.0 / (2 * term + 1)
    ln2 = tl.zeros_like(s) + LN2
    return _product((-exponent).to(tl.float64), ln2) + _product(2.0 * s, series)


@triton.jit
def _may_win(logprob, high, best):
    """False only where a token of this log-probability and upper word comes later than ``best`` (float32).

    ``E > x >= (high >> 1) / 2^31``; a weight is at most ``exp(logprob) * 2^31``. The factor is for float32's errors.
    """
    lowest = (high >> 1).to(tl.int32).to(tl.float32) * (0.998 * 2.0**-31)
    return lowest <= best * (tl.exp(tl.minimum(logprob, 0.0)) * (2.0**31))


@triton.jit
def _times(logprob, high, low):
    """When tokens arrive; infinite without a weight."""
    weight = fixed_point(tl.exp(logprob.to(tl.float64)), DRAW_BITS)
    return tl.where(weight > 0, exponential(high, low) / tl.maximum(weight, 1).to(tl.float64), float("inf"))


@triton.jit
def race_parts_kernel(
    logprobs_ptr, seeds_ptr, positions_ptr, times_ptr, tokens_ptr, row_stride, purpose,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The smallest time of a part of a row and the lowest id that has it."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row_ptr = logprobs_ptr + row * row_stride
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    pairs = tl.arange(0, BLOCK // 2)
    columns = 2 * pairs[:, None] + tl.arange(0, 2)[None, :]
    best = tl.full((), float("inf"), tl.float64)
    winner = tl.full((), VOCAB, tl.int32)
    for start in tl.range(part * PART, tl.minimum(part * PART + PART, VOCAB), BLOCK, num_stages=STAGES):
        x = tl.load(row_ptr + start + columns, mask=start + columns < VOCAB, other=float("-inf"))
        if tl.max(tl.ravel(x > LEAST).to(tl.int32), 0) > 0:
            even, odd = tl.split(x)
            pair = start // 2 + pairs
            zero = pair * 0
            word_0, word_1, word_2, word_3 = tl.philox(seed, position + zero, purpose + zero, pair, zero + 1)
            limit = best.to(tl.float32)
            may_win = _may_win(even, word_0, limit) | _may_win(odd, word_2, limit)
            if tl.max(may_win.to(tl.int32), 0) > 0:
                even_times, odd_times = _times(even, word_0, word_1), _times(odd, word_2, word_3)
                first = tl.min(tl.minimum(even_times, odd_times), 0)
                id = tl.where(even_times == first, 2 * pair, tl.where(odd_times == first, 2 * pair + 1, VOCAB))
                winner = tl.where(first < best, tl.min(id, 0), winner)
                best = tl.minimum(first, best)
    place = row * tl.num_programs(1) + part
    tl.store(times_ptr + place, best)
    tl.store(tokens_ptr + place, winner)


@triton.jit
def race_winner_kernel(times_ptr, tokens_ptr, result_ptr, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """The first of the parts' winners; -1 where there is none."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PADDED)
    times = tl.load(times_ptr + row * PARTS + part, mask=part < PARTS, other=float("inf"))
    tokens = tl.load(tokens_ptr + row * PARTS + part, mask=part < PARTS, other=0)
    first = tl.min(times, 0)
    winner = tl.min(tl.where(times == first, tokens, 0x7FFFFFFF), 0)
    tl.store(result_ptr + row, tl.where(first < float("inf"), winner, -1))
