"""Draws follow the distribution and depend on nothing but their key."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.fixed_point import draw
from deepinfer_core.ops.sampling.random import DRAW, random_words
from deepinfer_core.ops.sampling.sample import sample

NUM_DRAWS = 20000
DISTRIBUTIONS = {
    "even": [0.125] * 8,
    "steep": [0.6, 0.2, 0.1, 0.05, 0.03, 0.015, 0.005],
    "last_is_likely": [0.01, 0.02, 0.07, 0.9],
    "with_gaps": [0.0, 0.3, 0.0, 0.0, 0.5, 0.2, 0.0],
}


def _draws(probabilities: list[float], seeds: Tensor, positions: Tensor) -> Tensor:
    logprobs = torch.tensor(probabilities, dtype=torch.float64).log().float().expand(len(seeds), -1)
    return sample(logprobs, seeds, positions.int(), purpose=DRAW)


def chi_square_limit(degrees: int) -> float:
    """The value that a chi-square exceeds with chance 1e-4 (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_fit_the_distribution_along_a_sequence_and_across_requests(name: str, along: str) -> None:
    probabilities = torch.tensor(DISTRIBUTIONS[name], dtype=torch.float64)
    counting, fixed = torch.arange(NUM_DRAWS), torch.full((NUM_DRAWS,), 77)
    seeds, positions = (fixed, counting) if along == "positions" else (counting, fixed)

    ids = _draws(DISTRIBUTIONS[name], seeds, positions)

    counts = torch.bincount(ids, minlength=len(probabilities)).double()
    possible = probabilities > 0
    expected = probabilities[possible] * NUM_DRAWS
    assert counts[~possible].sum() == 0
    assert ((counts[possible] - expected) ** 2 / expected).sum() < chi_square_limit(int(possible.sum()) - 1)


def test_a_drawn_token_is_the_first_whose_cumulative_weight_exceeds_the_number() -> None:
    probabilities = DISTRIBUTIONS["steep"]
    seeds, positions = torch.arange(300) - 150, torch.arange(300)
    words = random_words(seeds, positions, DRAW)

    ids = _draws(probabilities, seeds, positions)

    logprobs = torch.tensor(probabilities, dtype=torch.float64).log().float()
    weights = [math.floor(math.exp(value) * 2**31) for value in logprobs.tolist()]
    for column, token in enumerate(ids.tolist()):
        bits = (int(words[0, column]) >> 1 << 31) | (int(words[1, column]) >> 1)
        number = sum(weights) * bits >> 62
        assert sum(weights[:token]) <= number < sum(weights[: token + 1])


def test_a_weight_of_one_is_drawn_and_a_weight_of_zero_beside_it_is_not() -> None:
    weights = torch.tensor([0, 1, 0, 1, 0]).repeat(200, 1)

    ids = draw(weights, torch.arange(200), torch.zeros(200), DRAW)

    assert ids.unique().tolist() == [1, 3]


def test_a_token_below_the_resolution_is_never_drawn() -> None:
    probabilities = [2.0**-32, 1 - 2.0**-31, 2.0**-32]

    ids = _draws(probabilities, torch.arange(5000), torch.zeros(5000))

    assert ids.unique().tolist() == [1]


def test_a_row_without_weight_gives_no_token() -> None:
    logprobs = torch.tensor([[-math.inf, -math.inf], [math.nan, math.nan], [0.0, -math.inf]])

    ids = sample(logprobs, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), purpose=DRAW)

    assert ids.tolist() == [-1, -1, 0]
