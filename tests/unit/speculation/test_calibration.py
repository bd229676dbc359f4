"""Sequential temperature scaling: what was off by a known temperature is put right, and nothing else is touched."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ConfigError
from deepinfer_core.ops.speculation import confidence as op
from deepinfer_core.speculation.calibration import (
    GRID,
    LARGEST_LOGIT,
    FittedTemperatures,
    Observations,
    area_under_curve,
    error_by_chance,
    expected_calibration_error,
    fit_and_measure,
    fit_temperatures,
    log_sigmoid,
    log_survival,
    measure,
    reliability,
    weighted_ece,
)
from tests.unit.speculation.synthetic import SCALES, SIZE, block, make_blocks

STEP = math.log(GRID[1] / GRID[0])


@pytest.fixture(scope="module")
def fit() -> FittedTemperatures:
    return fit_and_measure(make_blocks(60_000, stop_share=0.1))


def steps_apart(found: float, right: float) -> float:
    """How many points of the grid lie between two temperatures."""
    return abs(math.log(found / right)) / STEP


def test_the_grid_is_the_published_one() -> None:
    assert len(GRID) == 41
    assert GRID[0] == pytest.approx(0.1)
    assert GRID[20] == 1.0
    assert GRID[-1] == pytest.approx(10)
    assert np.allclose(np.diff(np.log(GRID)), STEP)


@pytest.mark.parametrize("seed", range(2))
def test_known_temperatures_are_found_again(seed: int) -> None:
    found = fit_temperatures(Observations.of(make_blocks(60_000, seed=seed)))

    assert all(steps_apart(a, b) < 1.5 for a, b in zip(found, SCALES, strict=True)), found


def test_error_on_held_out_requests_falls_to_half_and_below_two_percent(fit: FittedTemperatures) -> None:
    for before, after in zip(fit.before, fit.after, strict=True):
        assert after.ece <= min(before.ece / 2, 0.02), after.position
    assert weighted_ece(fit.after) <= weighted_ece(fit.before) / 4


def test_error_that_is_left_is_that_of_chance(fit: FittedTemperatures) -> None:
    for after in fit.after:
        assert after.ece <= 2 * after.ece_by_chance, after.position


def test_order_at_a_position_is_kept() -> None:
    logits = np.random.default_rng(1).normal(0, 4, 1000)
    accepted = np.random.default_rng(2).random(1000) < 0.6
    areas = {area_under_curve(log_sigmoid(logits, t), accepted) for t in (0.3, 1.0, 2.2)}

    assert len(areas) == 1
    for temperature in (0.1, 1.0, 10.0):
        scaled = log_sigmoid(logits, temperature)
        assert (np.diff(scaled[np.argsort(logits)]) >= 0).all()


def test_area_of_the_first_position_is_not_changed_and_deeper_ones_do_not_lose(fit: FittedTemperatures) -> None:
    assert fit.after[0].auc == fit.before[0].auc
    for before, after in zip(fit.before[1:], fit.after[1:], strict=True):
        assert before.auc is not None
        assert after.auc is not None
        assert after.auc > before.auc - 0.005


def test_survival_never_increases_along_a_block() -> None:
    logits = np.random.default_rng(1).normal(0, 20, (200, SIZE))

    assert (np.diff(log_survival(logits, SCALES), axis=1) <= 0).all()


def test_probability_is_that_of_the_op() -> None:
    hidden = torch.linspace(-900, 900, 41).reshape(-1, 1)
    table, previous = torch.zeros(1, 1), torch.zeros(41, dtype=torch.int32)

    logits, expected = op.confidence(hidden, previous, table, torch.ones(1, 2), temperature=1.7)

    assert op.LARGEST_LOGIT == LARGEST_LOGIT
    found = np.exp(log_sigmoid(logits.double().numpy(), 1.7))
    assert np.allclose(found, expected.numpy(), rtol=1e-5, atol=0)


def test_a_right_confidence_is_left_alone() -> None:
    fit = fit_and_measure(make_blocks(60_000, (1.0, 1.0, 1.0)))

    assert all(steps_apart(found, 1.0) < 1.5 for found in fit.temperatures)


def test_earlier_positions_are_not_fitted_again() -> None:
    blocks = make_blocks(4000)
    short = [block(*b.confidence_logits[:3], accepted=min(b.num_accepted, 3)) for b in blocks]

    assert fit_temperatures(Observations.of(short)) == fit_temperatures(Observations.of(blocks))[:3]


def test_each_temperature_is_the_best_of_the_grid() -> None:
    observations = Observations.of(make_blocks(500, stop_share=0.3))
    found = fit_temperatures(observations)

    for position in range(SIZE):
        errors = {t: measure(observations, (*found[:position], t, *found[position + 1 :]))[position].ece for t in GRID}
        assert errors[found[position]] == pytest.approx(min(errors.values()), abs=1e-9)


def test_what_was_not_judged_changes_nothing() -> None:
    """Logits behind the verified part may be anything."""
    blocks = make_blocks(3000, stop_share=0.5)
    spoilt = [
        block(*b.confidence_logits[: b.num_verified], *[33.0] * (SIZE - b.num_verified),
              accepted=b.num_accepted, verified=b.num_verified, request=b.request_id)
        for b in blocks
    ]  # fmt: skip

    assert fit_and_measure(spoilt) == fit_and_measure(blocks)


def test_blocks_that_end_early_count_as_far_as_they_go() -> None:
    blocks = make_blocks(3000, stop_share=0.5)
    cut = [replace(b, confidence_logits=b.confidence_logits[: b.num_verified]) for b in blocks]

    assert fit_and_measure(cut) == fit_and_measure(blocks)


def test_counts_are_of_what_was_judged() -> None:
    blocks = [block(1.0, 2.0, accepted=1, verified=1), block(1.0, 2.0, accepted=1), block(0.0, 0.0, accepted=0)]
    unjudged = block(9.0, 9.0, accepted=0, verified=0)

    first, second = measure(Observations.of([*blocks, unjudged]), (1.0, 1.0))

    assert (first.position, first.num_blocks, first.accepted) == (1, 3, pytest.approx(2 / 3))
    assert (second.position, second.num_blocks, second.accepted) == (2, 2, 0.0)
    assert second.auc is None


def test_the_same_blocks_give_the_same_fit() -> None:
    blocks = make_blocks(2000, stop_share=0.2)

    assert fit_and_measure(blocks) == fit_and_measure(list(blocks))


def test_order_of_the_blocks_of_a_request_does_not_matter() -> None:
    blocks = make_blocks(2000)
    shuffled = sorted(random.Random(3).sample(blocks, len(blocks)), key=lambda b: int(b.request_id))
    ordered = sorted(blocks, key=lambda b: int(b.request_id))

    assert fit_and_measure(shuffled).temperatures == fit_and_measure(ordered).temperatures


def test_held_out_requests_are_every_second_one() -> None:
    blocks = [block(float(n), accepted=n % 2, request=str(n // 3)) for n in range(15)]

    fit = fit_and_measure(blocks)

    assert (fit.num_requests, fit.num_held_out_requests) == (3, 2)
    assert (fit.num_blocks, fit.num_held_out_blocks) == (9, 6)
    assert fit.temperatures == fit_temperatures(Observations.of(b for b in blocks if int(b.request_id) % 2 == 0))


@pytest.mark.parametrize("sign", [1, -1])
def test_blocks_of_one_kind_are_fitted_but_have_no_area(sign: int) -> None:
    """All accepted with high, or none with low confidence: the surer the better, and no order to judge."""
    blocks = [block(sign * 2.0, sign * 3.0, accepted=1 + sign, request=str(n)) for n in range(4)]

    fit = fit_and_measure(blocks)

    assert fit.temperatures[0] == GRID[0]
    assert all(one.auc is None for one in (*fit.before, *fit.after))
    assert fit.after[0].ece < 1e-7


def test_of_equally_good_temperatures_the_nearest_to_one_is_taken() -> None:
    """Logits beyond the clamp at any temperature, or zero: no temperature changes anything."""
    blocks = [block(1e4, 0.0, accepted=n % 3) for n in range(9)]

    assert fit_temperatures(Observations.of(blocks)) == (1.0, 1.0)
    assert fit_temperatures(Observations.of(blocks), grid=(0.5, 2.0)) == (2.0, 2.0)


@pytest.mark.parametrize("blocks", [[], [block(1.0, accepted=0, verified=0)]])
def test_nothing_verified_is_an_error(blocks: list) -> None:
    with pytest.raises(ConfigError, match=r"no block of drafts was verified.*give more prompts"):
        fit_and_measure(blocks)


def test_a_position_that_was_never_verified_is_an_error() -> None:
    blocks = [block(1.0, 1.0, 1.0, accepted=0, verified=1 + n % 2, request=str(n)) for n in range(8)]

    with pytest.raises(ConfigError, match="of 3 positions of a block, 3 was verified in none of 8 blocks"):
        fit_temperatures(Observations.of(blocks))
    with pytest.raises(ConfigError, match="2, 3 were verified in none of 4 blocks"):
        fit_and_measure(blocks)


def test_a_single_request_leaves_nothing_to_measure_on() -> None:
    with pytest.raises(ConfigError, match=r"all blocks are of one request.*give more prompts"):
        fit_and_measure([block(1.0, accepted=1), block(0.0, accepted=0)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (block(1.0, math.nan, accepted=1), "must be finite; check the weights of the draft module"),
        (block(1.0, -math.inf, accepted=1), "must be finite"),
        (block(1.0, 1.0, accepted=2, verified=1), "2 drafts accepted, 1 verified and 2 in all"),
        (block(1.0, 1.0, accepted=2, verified=3), "3 verified and 2 in all"),
        (block(1.0, 1.0, accepted=-1), "-1 drafts accepted"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Observations.of([block(1.0, 1.0, accepted=1), wrong])


def test_temperatures_must_be_one_for_each_position() -> None:
    with pytest.raises(ConfigError, match="3 temperatures for blocks of 2 drafts"):
        measure(Observations.of([block(1.0, 1.0, accepted=1)]), (1.0, 1.0, 1.0))


def test_calibration_error_by_hand() -> None:
    predicted = np.array([0.1, 0.3, 0.9, 1.0])
    accepted = np.array([False, True, True, False])

    # two bins: |0.4 - 1| and |1.9 - 1|, over four blocks
    assert expected_calibration_error(predicted, accepted, bins=2) == pytest.approx((0.6 + 0.9) / 4)
    assert expected_calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == pytest.approx(1e-8)


def test_reliability_by_hand() -> None:
    low, high = reliability(np.array([0.1, 0.3, 0.9]), np.array([False, True, True]), bins=2)

    assert (low.predicted, low.accepted, low.count) == (pytest.approx(0.2), 0.5, 2)
    assert (high.predicted, high.accepted, high.count) == (pytest.approx(0.9), 1.0, 1)
    assert len(reliability(np.array([0.1]), np.array([True]))) == 1


def test_bins_hold_every_judged_block_and_give_the_error(fit: FittedTemperatures) -> None:
    for one in (*fit.before, *fit.after):
        assert sum(b.count for b in one.bins) == one.num_blocks
        total = sum(b.count * abs(b.predicted - b.accepted) for b in one.bins)
        assert total / one.num_blocks == pytest.approx(one.ece)


@pytest.mark.parametrize("num_blocks", [200, 5000])
def test_error_by_chance_is_that_of_right_predictions(num_blocks: int) -> None:
    random = np.random.default_rng(5)
    predicted = random.random(num_blocks)
    errors = [expected_calibration_error(predicted, random.random(num_blocks) < predicted) for _ in range(200)]

    assert error_by_chance(predicted) == pytest.approx(float(np.mean(errors)), rel=0.05)


def test_area_by_hand_and_against_counting_pairs() -> None:
    scores = np.array([1.0, 2.0, 2.0, 3.0])
    accepted = np.array([False, False, True, True])
    random = np.random.default_rng(0)
    many, truths = np.round(random.normal(size=300), 1), random.random(300) < 0.4
    pairs = many[truths][:, None] - many[~truths][None, :]

    assert area_under_curve(scores, accepted) == pytest.approx(3.5 / 4)
    assert area_under_curve(np.zeros(4), accepted) == 0.5
    assert area_under_curve(-scores, ~accepted) == pytest.approx(3.5 / 4)
    assert area_under_curve(many, truths) == pytest.approx(float(((pairs > 0) + (pairs == 0) / 2).mean()))
    assert area_under_curve(scores, np.ones(4, dtype=bool)) is None
