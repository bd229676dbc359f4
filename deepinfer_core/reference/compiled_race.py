"""A token drawn by an exponential race, in compiled code: hash whole vectors, take the logarithm of few.

A token can win only if its time ``E / w`` is not above the best so far. ``E`` is above ``x``, and ``w`` below
``exp(logprob) * 2^31``, so that a hash and five operations in float32 leave a handful of tokens of a row to be looked
at exactly (:mod:`deepinfer_core.ops.sampling.arrivals` has the definition).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.ops.sampling.arrivals import LN2, LOWEST_MANTISSA, RACE, SERIES
from deepinfer_core.ops.sampling.fixed_point import DRAW_BITS
from deepinfer_core.reference.compiled import array, exact_kernel, number, over_rows, tensor

if TYPE_CHECKING:
    from torch import Tensor

_PAIRS = 512
"""Pairs of tokens that are hashed at a time."""
_LEAST = np.float32(-21.5)
"""Not above the log-probability of any token with a weight; ``exp`` of it times 2^31 is 0.988."""
_LOG2_E = np.float32(math.log2(math.e))
_BIAS = np.float32(127.0)
_MANTISSA = np.float32(2.0**23)
_SLACK = np.float32(1 / 1.07)
"""Makes bounds of estimates: a chord of ``2^s`` is up to 1.0615 times the curve, and float32 adds 2^-15."""
_SCALE = 2.0**DRAW_BITS
_TERMS = np.array(SERIES)

_HALF = np.uint64(32)
_FIRST = np.uint64(0xD2511F53)
_SECOND = np.uint64(0xCD9E8D57)
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


@exact_kernel
def _word(number: Any) -> Any:
    """The low 32 bits as uint64; said this way, the compiler knows that products need no more than 64."""
    return np.uint64(np.uint32(number))


@exact_kernel
def _hash(
    position: Any, purpose: Any, seed: Any, pairs: Any, word_0: Any, word_1: Any, word_2: Any, word_3: Any
) -> None:
    """Philox words of the pairs of tokens given."""
    for place in range(len(pairs)):
        a, b, c, d = _word(position), _word(purpose), _word(pairs[place]), _word(RACE)
        key_0, key_1 = _word(seed), _word(seed >> _HALF)
        for _ in range(10):
            first, second = _FIRST * a, _SECOND * c
            a, b = (second >> _HALF) ^ b ^ key_0, _word(second)
            c, d = (first >> _HALF) ^ d ^ key_1, _word(first)
            key_0, key_1 = _word(key_0 + _KEY_STEPS[0]), _word(key_1 + _KEY_STEPS[1])
        word_0[place], word_1[place], word_2[place], word_3[place] = a, b, c, d


@exact_kernel
def _lower_bounds(logprobs: Any, words: Any, bounds: Any) -> None:
    """What the time of each token is not below, in float32, from its upper word; infinite without a weight."""
    for place in range(len(logprobs)):
        logprob = logprobs[place]
        has_weight = logprob > _LEAST
        halvings = (-min(logprob, np.float32(0.0)) if has_weight else np.float32(0.0)) * _LOG2_E
        chord = number(np.int32((halvings + _BIAS) * _MANTISSA))
        upper = np.float32(np.int32(words[place] >> np.uint32(1)))
        bounds[place] = upper * chord * _SLACK if has_weight else np.float32(np.inf)


@exact_kernel
def exponential(high: Any, low: Any) -> Any:
    """As :func:`deepinfer_core.ops.sampling.arrivals.exponential`, of the two words of a token."""
    odd = (np.int64(high >> 1) << 32) | np.int64(low >> 1 << 1) | 1
    x = np.float64(odd) * 2.0**-63
    mantissa, exponent = math.frexp(np.float64(np.int64(2**63 - 1) - odd + 1) * 2.0**-63)
    if mantissa < LOWEST_MANTISSA:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    s = (x if exponent == 0 else 1.0 - mantissa) / (1.0 + mantissa)
    square = s * s
    series = _TERMS[-1]
    for place in range(len(_TERMS) - 2, -1, -1):
        series = series * square + _TERMS[place]
    return np.float64(-exponent) * LN2 + 2.0 * s * series


@exact_kernel
def _weight(logprob: Any) -> Any:
    return math.floor(math.exp(min(np.float64(logprob), 0.0)) * _SCALE)


@exact_kernel
def _pairs_with_weight(row: Any, start: Any, pairs: Any, logprobs: Any) -> Any:
    """List the pairs from ``start`` on of which a token may have a weight, and the log-probabilities of both."""
    count, vocab_size = 0, len(row)
    for place in range(min(len(pairs), (vocab_size + 1) // 2 - start)):
        pair = start + place
        even = row[2 * pair]
        odd = row[2 * pair + 1] if 2 * pair + 1 < vocab_size else np.float32(-np.inf)
        pairs[count], logprobs[0, count], logprobs[1, count] = pair, even, odd
        count += int(even > _LEAST or odd > _LEAST)
    return count


@exact_kernel
def _race_rows(logprobs: Any, seeds: Any, positions: Any, purpose: Any, tokens: Any, first: Any, last: Any) -> None:
    pairs, words = np.empty(_PAIRS, np.uint32), np.empty((4, _PAIRS), np.uint32)
    given, bounds = np.empty((2, _PAIRS), np.float32), np.empty((2, _PAIRS), np.float32)
    for index in range(first, last):
        row, seed, position = logprobs[index], np.uint64(seeds[index]), positions[index]
        best, limit, winner = np.inf, np.float32(np.inf), -1
        for start in range(0, (len(row) + 1) // 2, _PAIRS):
            count = _pairs_with_weight(row, start, pairs, given)
            _hash(position, purpose, seed, pairs[:count], words[0], words[1], words[2], words[3])
            for side in range(2):
                _lower_bounds(given[side, :count], words[2 * side], bounds[side])
            for place in range(count):
                if min(bounds[0, place], bounds[1, place]) > limit:
                    continue
                for side in range(2):
                    weight = _weight(given[side, place])
                    if weight > 0.0:
                        time = exponential(words[2 * side, place], words[2 * side + 1, place]) / weight
                        if time < best:
                            best, winner = time, 2 * np.int64(pairs[place]) + side
                            limit = np.float32(time * 2.0**62)
        tokens[index] = winner


def run_race(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, purpose: int) -> Tensor:
    """``sampling.race``."""
    num_rows, vocab_size = logprobs.shape
    tokens = np.empty(num_rows, np.int32)
    inputs = (array(logprobs), array(seeds), array(positions), np.uint64(purpose))
    over_rows(_race_rows, num_rows, vocab_size, *inputs, tokens)
    return tensor(tokens)
