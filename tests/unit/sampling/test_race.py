"""Races follow the distribution, to the bit on every device, and similar distributions draw the same token."""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.arrivals import earliest, exponential, race_bits, race_draw
from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.sampling.random import DRAFT, DRAW, RESIDUAL, counted_words
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.reference import compiled_race
from deepinfer_core.reference.compiled import HAS_NUMBA

NUM_DRAWS = 200_000
LARGEST = 2**62 - 1
needs_compiler = pytest.mark.skipif(not HAS_NUMBA, reason="compiled kernels need numba")


def _races(logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int = DRAW, at_once: int = 2000) -> Tensor:
    """Draws from one distribution, some rows at a time; compiled where possible, which gives the same tokens."""
    run = compiled_race.run_race if HAS_NUMBA else race
    parts = zip(seeds.split(at_once), positions.int().split(at_once), strict=True)
    return torch.cat([run(logprobs.expand(len(s), -1), s, p, purpose=purpose) for s, p in parts])


def _logits(vocab: int, scale: float = 2.0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(vocab), dtype=torch.float64) * scale


def chi_square_limit(degrees: int) -> float:
    """The value that a chi-square exceeds with chance 1e-3 (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


def chi_square(counts: Tensor, chances: Tensor) -> float:
    expected = chances * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def _edges() -> list[int]:
    """Bits around every power of two from both ends, where mantissas change over, and at random."""
    source = random.Random(7)
    powers = [2**power + step for power in range(62) for step in (-1, 0, 1)]
    overs = [round((1 - 181 / 256 / 2**n) * 2**62) + step for n in range(40) for step in (-1, 0, 1)]
    scattered = [source.getrandbits(62) >> source.randrange(62) for _ in range(4000)]
    near_zero = sorted({bits for bits in [*powers, *overs, *scattered] if 0 <= bits <= LARGEST})
    return [*near_zero, *(LARGEST - bits for bits in near_zero)]


def test_exponential_numbers_are_accurate_at_both_ends() -> None:
    bits = _edges()

    numbers = exponential(torch.tensor(bits)).tolist()

    errors = []
    with localcontext() as context:
        context.prec = 50
        for one, number in zip(bits, numbers, strict=True):
            exact = -(1 - (Decimal(one) + Decimal("0.5")) / Decimal(2**62)).ln()
            errors.append(abs(Decimal(number) / exact - 1))
    print(f"largest relative error of {len(bits)}: 2^{math.log2(max(errors)):.2f}")
    assert max(errors) < 2.0**-49
    assert min(numbers) == 2.0**-63
    assert max(numbers) == pytest.approx(63 * math.log(2))


def test_exponential_numbers_never_fall_when_bits_rise_by_much() -> None:
    bits = torch.tensor(sorted(_edges()))

    numbers = exponential(bits)

    assert (numbers.diff()[bits.diff() > bits[1:] >> 45] >= 0).all()


@needs_compiler
def test_compiled_exponential_numbers_have_the_same_bits() -> None:
    bits = _edges()

    numbers = [compiled_race.exponential(np.uint32(one >> 31 << 1), np.uint32((one << 1) & 0xFFFFFFFF)) for one in bits]

    assert numbers == exponential(torch.tensor(bits)).tolist()


@needs_compiler
@pytest.mark.parametrize("vocab", [1, 2, 37, 512, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("scale", [0.0, 3.0, 12.0])
def test_compiled_races_have_the_same_winners(vocab: int, scale: float) -> None:
    source = torch.Generator().manual_seed(vocab)
    logprobs = (torch.randn(30, vocab, generator=source) * scale).log_softmax(-1)
    seeds = torch.randint(-(2**63), 2**63 - 1, (30,), generator=source)
    positions = torch.arange(30, dtype=torch.int32) * 1000

    assert torch.equal(
        compiled_race.run_race(logprobs, seeds, positions, purpose=DRAFT + 2),
        race(logprobs, seeds, positions, purpose=DRAFT + 2),
    )


def test_tokens_share_a_hash_by_pairs() -> None:
    seeds, positions = torch.tensor([5, -5, 2**62]), torch.tensor([9, 10, 2**31 - 1], dtype=torch.int32)

    bits = race_bits(seeds, positions, 2, 7)

    for token in range(7):
        words = counted_words(seeds, positions, 2, token // 2, 1)
        high, low = words[2 * (token % 2) :][:2].tolist()
        assert bits[:, token].tolist() == [(h >> 1) * 2**31 + (w >> 1) for h, w in zip(high, low, strict=True)]


def test_the_lowest_of_equal_tokens_wins_and_nobody_where_all_are_infinite() -> None:
    inf = math.inf
    times = torch.tensor([[3.0, 1.0, 1.0, 2.0], [inf, inf, inf, 9.0], [0.5, 0.5, 0.5, 0.5], [inf] * 4])

    assert earliest(times.double()).tolist() == [1, 3, 0, -1]


@pytest.mark.parametrize("vocab", [8, 100])
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_winners_fit_the_distribution(vocab: int, along: str) -> None:
    counting, fixed = torch.arange(NUM_DRAWS), torch.full((NUM_DRAWS,), 77)
    seeds, positions = (fixed, counting) if along == "positions" else (counting, fixed)
    logprobs = _logits(vocab).log_softmax(-1)

    ids = _races(logprobs.float(), seeds, positions)

    found = chi_square(torch.bincount(ids, minlength=vocab).double(), logprobs.exp())
    print(f"chi-square {found:.1f} of {vocab - 1} degrees, limit {chi_square_limit(vocab - 1):.1f}")
    assert found < chi_square_limit(vocab - 1)


def test_tiny_weights_fit_their_ratios() -> None:
    """Weights 1, 2, 3 and 4 of 2^31: their winners have exponentials of any size."""
    weights = torch.tensor([0, 1, 2, 3, 4, 0]).expand(20_000, -1)

    ids = race_draw(weights, torch.arange(20_000), torch.zeros(20_000), DRAW)

    counts = torch.bincount(ids, minlength=6).double()
    assert counts[0] == counts[5] == 0
    assert chi_square(counts[1:5], torch.tensor([0.1, 0.2, 0.3, 0.4])) < chi_square_limit(3)


def test_a_row_without_weight_gives_no_token_and_rare_tokens_are_never_drawn() -> None:
    below = -31.01 * math.log(2)
    logprobs = torch.tensor([[-math.inf] * 2, [math.nan] * 2, [0.0, -math.inf], [below, math.nan], [below, 0.0]])

    ids = race(logprobs, torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int32), purpose=DRAW)

    assert ids.tolist() == [-1, -1, 0, -1, 1]


def _joint(first: Tensor, second: Tensor, chances: Tensor) -> float:
    counts = torch.bincount(first.long() * len(chances) + second, minlength=len(chances) ** 2).double()
    return chi_square(counts, torch.outer(chances, chances).reshape(-1))


def test_other_purposes_positions_and_seeds_are_independent_and_so_is_the_inverse_cdf() -> None:
    logprobs, positions = _logits(6, 1.0).log_softmax(-1), torch.arange(NUM_DRAWS)
    seeds = torch.full((NUM_DRAWS,), 12345)
    drawn = _races(logprobs.float(), seeds, positions)
    others = {
        "purpose": _races(logprobs.float(), seeds, positions, RESIDUAL),
        "draft": _races(logprobs.float(), seeds, positions, DRAFT),
        "position": _races(logprobs.float(), seeds, positions + 1),
        "seed": _races(logprobs.float(), seeds + 1, positions),
        "inverse": sample(logprobs.float().expand(NUM_DRAWS, -1), seeds, positions.int(), purpose=DRAW),
    }

    found = {name: _joint(drawn, other, logprobs.exp()) for name, other in others.items()}

    print(found, chi_square_limit(35))
    assert max(found.values()) < chi_square_limit(35)


def test_tokens_of_one_hash_are_independent() -> None:
    """Exponentials of neighbours: each above or below its median."""
    numbers = exponential(race_bits(torch.arange(NUM_DRAWS // 4), torch.zeros(NUM_DRAWS // 4), DRAW, 4))
    above = (numbers > math.log(2)).long()

    patterns = torch.bincount((above * torch.tensor([1, 2, 4, 8])).sum(-1), minlength=16).double()

    assert chi_square(patterns, torch.full((16,), 1 / 16)) < chi_square_limit(15)


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize(
    ("vocab", "draws"), [(8, 40_000), (512, 20_000), pytest.param(129280, 1000, marks=needs_compiler)]
)
def test_similar_distributions_draw_the_same_token(vocab: int, draws: int, noise: float) -> None:
    source = torch.Generator().manual_seed(vocab + 1)
    logits = _logits(vocab)
    other = logits + noise * torch.randn(vocab, generator=source, dtype=torch.float64)
    p, q = logits.softmax(-1), other.softmax(-1)
    distance = float((p - q).abs().sum()) / 2
    bound = (1 - distance) / (1 + distance)
    seeds, positions = torch.full((draws,), 3), torch.arange(draws)

    drawn = [_races(x.log().float(), seeds, positions, at_once=4096 if vocab < 1000 else 50) for x in (p, q)]

    same = float((drawn[0] == drawn[1]).double().mean())
    sigma = math.sqrt(bound * (1 - bound) / draws)
    print(f"TV {distance:.4f}: same token {same:.4f}, bound {bound:.4f}, best possible {1 - distance:.4f}")
    assert bound - 3 * sigma <= same <= 1 - distance + 3 * sigma
