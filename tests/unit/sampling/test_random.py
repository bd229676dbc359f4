"""Random words are Philox4x32-10, and integers made of them are uniform."""

from __future__ import annotations

import random

import pytest
import torch

from deepinfer_core.ops.sampling.random import DRAFT, philox, random_words, uniform, uniform_below

WORD = 0xFFFFFFFF
# Published known answers of Random123 for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def _plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """The same function on Python integers, word by word."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & WORD, (first >> 32) ^ d ^ m, first & WORD
        k, m = (k + 0x9E3779B9) & WORD, (m + 0xBB67AE85) & WORD
    return [a, b, c, d]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    columns = torch.tensor(_words(counter)).unsqueeze(-1), torch.tensor(_words(key)).unsqueeze(-1)

    result = philox(*columns)

    assert result.squeeze(-1).tolist() == _words(expected)
    assert _plain_philox(_words(counter), _words(key)) == _words(expected)


def test_words_are_keyed_by_seed_position_and_purpose() -> None:
    source = random.Random(3)
    seeds = [source.getrandbits(64) for _ in range(50)] + [0, 2**63, 2**64 - 1]
    places = [source.getrandbits(31) for _ in seeds]
    purposes = [source.randrange(9) for _ in seeds]
    as_signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds])

    words = random_words(as_signed, torch.tensor(places, dtype=torch.int32), torch.tensor(purposes))

    for column, (seed, place, purpose) in enumerate(zip(seeds, places, purposes, strict=True)):
        expected = _plain_philox([place, purpose, 0, 0], [seed & WORD, seed >> 32])
        assert words[:, column].tolist() == expected


def test_purposes_positions_and_seeds_share_no_words() -> None:
    seeds = torch.arange(10).repeat_interleave(100)
    positions = torch.arange(100, dtype=torch.int32).repeat(10)

    drawn = [random_words(seeds, positions, purpose)[0] for purpose in range(DRAFT + 5)]

    assert torch.cat(drawn).unique().numel() == 1000 * (DRAFT + 5)


def test_integers_stay_below_the_total_at_both_ends_of_the_words() -> None:
    totals = torch.tensor([0, 1, 2, 3, 2**31, 2**32 - 1]).repeat(2)
    words = torch.zeros(4, 12, dtype=torch.int64)
    words[:, 6:] = WORD

    drawn = uniform_below(totals, words)

    assert drawn.tolist() == [0] * 6 + [0, 0, 1, 2, 2**31 - 1, 2**32 - 2]


def test_integers_follow_their_exact_definition() -> None:
    source = random.Random(5)
    words = [[source.getrandbits(32) for _ in range(200)] for _ in range(4)]
    totals = [source.getrandbits(31) + 1 for _ in range(200)]

    drawn = uniform_below(torch.tensor(totals), torch.tensor(words))

    expected = [t * ((w >> 1 << 31) | (v >> 1)) >> 62 for t, w, v in zip(totals, words[0], words[1], strict=True)]
    assert drawn.tolist() == expected


def test_uniform_numbers_are_below_one_and_spread_evenly() -> None:
    positions = torch.arange(20000, dtype=torch.int32)

    numbers = uniform(random_words(torch.full((20000,), 11), positions, 2))

    counts = torch.histc(numbers, 20, 0, 1)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square of 19 degrees of freedom, chance 1e-4
