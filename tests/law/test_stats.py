"""The yardstick: tails from tables, and tests that notice what they should and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.law.stats import alike, chi_square_tail, fits, holm


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841459, 1, 0.05), (9.210340, 2, 0.01), (18.307038, 10, 0.05), (135.806723, 100, 0.01), (0.0, 4, 1.0)],
)
def test_tails_of_chi_square(statistic: float, freedom: int, tail: float) -> None:
    assert abs(chi_square_tail(statistic, freedom) - tail) < 1e-7


def test_far_tails_do_not_run_dry_early() -> None:
    assert 0 < chi_square_tail(600.0, 3) < 1e-100


def _sample(weights: list[float], number: int, seed: int) -> Counter[int]:
    return Counter(random.Random(seed).choices(range(len(weights)), weights, k=number))


def test_p_values_of_true_hypotheses_are_even() -> None:
    law = [0.4, 0.3, 0.2, 0.0999, 0.0001]
    one = [fits(_sample(law, 1000, seed), dict(enumerate(law))) for seed in range(200)]
    two = [alike(_sample(law, 1000, seed), _sample(law, 1500, seed + 1000)) for seed in range(200)]

    for p_values in (one, two):
        for level in (0.1, 0.5, 0.9):
            assert abs(sum(p < level for p in p_values) / 200 - level) < 0.1


def test_a_wrong_law_is_noticed() -> None:
    law = {0: 0.5, 1: 0.5}

    assert fits(Counter({0: 5300, 1: 4700}), law) < 1e-8
    assert alike(Counter({0: 5300, 1: 4700}), Counter({0: 5000, 1: 5000})) < 1e-4
    assert fits(Counter({0: 500, 1: 499, 2: 1}), law) == 0


def test_holm_adjusts_for_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
