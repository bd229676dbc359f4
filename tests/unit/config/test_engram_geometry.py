"""Primes, offsets and row counts of engram tables."""

from __future__ import annotations

import pytest

from deepinfer_core.config.architecture import EngramArchitecture
from deepinfer_core.config.engram_geometry import engram_offsets, engram_primes, engram_rows, is_prime

RELEASED_PRIMES = (
    (
        (16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183),
        (16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321),
        (16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463),
    ),
    (
        (16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627),
        (16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769),
        (16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889),
    ),
)


def engram(*, layer_ids: tuple[int, ...], prime_start: int, heads: int, max_ngram: int = 4) -> EngramArchitecture:
    return EngramArchitecture(
        layer_ids=layer_ids,
        max_ngram=max_ngram,
        heads_per_ngram=heads,
        head_dim=32,
        prime_start=prime_start,
        pad_token_id=2,
        compressed_vocab_size=256,
    )


def test_released_primes_and_rows_follow_from_the_config() -> None:
    released = engram(layer_ids=(1, 14), prime_start=16_000_000, heads=8)

    assert engram_primes(released) == RELEASED_PRIMES
    assert engram_rows(released) == (384006168, 384016682)


def test_primes_ascend_over_layers_orders_and_heads_and_are_never_reused() -> None:
    small = engram(layer_ids=(1, 2), prime_start=256, heads=2)

    primes = engram_primes(small)

    assert primes == (((257, 263), (269, 271), (277, 281)), ((283, 293), (307, 311), (313, 317)))
    assert engram_rows(small) == (1618, 1824)


def test_a_start_that_is_prime_is_taken() -> None:
    assert engram_primes(engram(layer_ids=(1,), prime_start=257, heads=1, max_ngram=2)) == (((257,),),)


def test_offsets_are_the_rows_of_the_columns_before() -> None:
    assert engram_offsets(((257, 263), (269, 271))) == (0, 257, 520, 789)


def test_primality_agrees_with_a_sieve_below_ten_thousand() -> None:
    limit = 10_000
    sieve = [False, False] + [True] * (limit - 2)
    for number in range(2, limit):
        if sieve[number]:
            sieve[number * number :: number] = [False] * len(range(number * number, limit, number))

    assert [is_prime(number) for number in range(limit)] == sieve


@pytest.mark.parametrize("composite", [3215031751, 341550071728321, 3825123056546413051, (2**31 - 1) ** 2])
def test_strong_pseudoprimes_are_composite(composite: int) -> None:
    assert not is_prime(composite)


def test_large_primes_are_found() -> None:
    assert is_prime(2**61 - 1)
