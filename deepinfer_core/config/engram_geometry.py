"""Geometry of the engram tables: primes, first row of each hash column, row counts (spec model/06 section 2)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from deepinfer_core.config.architecture import EngramArchitecture

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
"""Miller-Rabin with these bases is exact below 3.3e24 (Sorenson and Webster, 2015)."""


def engram_primes(architecture: EngramArchitecture) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The prime of every hash column, indexed ``[engram layer][n - 2][head]``.

    Primes are taken in ascending order from ``prime_start`` for each (layer, n-gram size) and never twice,
    over all layers in the order of ``layer_ids``.
    """
    used: set[int] = set()
    return tuple(
        tuple(
            _next_primes(architecture.prime_start, architecture.heads_per_ngram, used)
            for _ in range(architecture.max_ngram - 1)
        )
        for _ in architecture.layer_ids
    )


def engram_offsets(layer_primes: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """First table row of every hash column of one layer, n-gram size outer and head inner."""
    columns = [prime for heads in layer_primes for prime in heads]
    return tuple(accumulate(columns, initial=0))[:-1]


def engram_rows(architecture: EngramArchitecture) -> tuple[int, ...]:
    """Rows of the table of every engram layer; no padding rows are stored."""
    return tuple(sum(sum(heads) for heads in layer) for layer in engram_primes(architecture))


def is_prime(number: int) -> bool:
    """Whether ``number`` (below 3.3e24) is prime."""
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, halvings = number - 1, 0
    while odd % 2 == 0:
        odd, halvings = odd // 2, halvings + 1
    return all(_passes(number, witness, odd, halvings) for witness in _WITNESSES)


def _passes(number: int, witness: int, odd: int, halvings: int) -> bool:
    """One round of Miller-Rabin: False proves that ``number`` is composite."""
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(halvings - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def _next_primes(start: int, count: int, used: set[int]) -> tuple[int, ...]:
    """The ``count`` smallest primes from ``start`` on that are not in ``used``, which they join."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if candidate not in used and is_prime(candidate):
            used.add(candidate)
            found.append(candidate)
        candidate += 1
    return tuple(found)
