"""NumPy's default random generator in whole numbers: the format of the n-gram memory is defined by its stream.

Written out because NumPy does not promise the stream of ``Generator.integers`` from version to version, while a
checkpoint stays what it is. Algorithms: SeedSequence and PCG64 XSL-RR (O'Neill), bounded by Lemire's multiplication.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from deepinfer_core.errors import require

_MASK_32, _MASK_64, _MASK_128 = 2**32 - 1, 2**64 - 1, 2**128 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645


def uniform_integers(seed: int, bound: int, count: int) -> tuple[int, ...]:
    """The numbers of ``numpy.random.default_rng(seed).integers(0, bound, count)``.

    Args:
        seed: Below 2^32.
        bound: Above 2^32 (NumPy draws smaller ones by another method) and at most 2^63.
        count: How many.
    """
    require(
        0 <= seed <= _MASK_32 and 2**32 < bound <= 2**63,
        f"uniform_integers: seed {seed} or bound {bound} is out of range",
    )
    products = (word * bound for word in _words(seed))
    smallest_fair = 2**64 % bound
    return tuple(islice((p >> 64 for p in products if p & _MASK_64 >= smallest_fair), count))


def _words(seed: int) -> Iterator[int]:
    """The generator's endless stream of 64-bit words."""
    high, low, stream_high, stream_low = _seed_words(seed)
    increment = ((stream_high << 64 | stream_low) << 1 | 1) & _MASK_128
    state = (increment + (high << 64 | low)) * _MULTIPLIER + increment & _MASK_128
    while True:
        state = state * _MULTIPLIER + increment & _MASK_128
        folded, turn = (state >> 64 ^ state) & _MASK_64, state >> 122
        yield (folded >> turn | folded << (64 - turn)) & _MASK_64


def _seed_words(seed: int) -> tuple[int, ...]:
    """Four 64-bit words from a seed, each bit of which changes all of them."""
    absorb = _Hash(constant=0x43B0D7E5, multiplier=0x931E8875)
    pool = [absorb(word) for word in (seed, 0, 0, 0)]
    for source in range(4):
        for target in range(4):
            if source != target:
                mixed = (0xCA01F9DD * pool[target] - 0x4973F715 * absorb(pool[source])) & _MASK_32
                pool[target] = mixed ^ mixed >> 16
    release = _Hash(constant=0x8B51F9DD, multiplier=0x58F38DED)
    halves = [release(word) for word in pool + pool]
    return tuple(low | high << 32 for low, high in zip(halves[::2], halves[1::2], strict=True))


class _Hash:
    """A 32-bit hash whose constant changes with every use."""

    def __init__(self, *, constant: int, multiplier: int) -> None:
        self._constant = constant
        self._multiplier = multiplier

    def __call__(self, word: int) -> int:
        word ^= self._constant
        self._constant = self._constant * self._multiplier & _MASK_32
        word = word * self._constant & _MASK_32
        return word ^ word >> 16
