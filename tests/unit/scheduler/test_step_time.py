"""What a decode step is expected to take."""

from __future__ import annotations

import logging
import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import ConfigError
from deepinfer_core.scheduler.drafts import StepTiming
from deepinfer_core.scheduler.step_time import FACTOR_SAMPLES, FACTOR_STEPS, REST_SAMPLES, StepTimeModel

CURVE = {1: 1.0, 4: 2.0, 8: 4.0}


def timing(num_rows: int = 4, verify_s: float = 2.0, rest_s: float = 0.0, **fields: Any) -> StepTiming:
    fields = {"num_sequences": 1, "proposed": True, **fields}
    return StepTiming(num_rows=num_rows, verify_s=verify_s, rest_s=rest_s, **fields)


def observe(model: StepTimeModel, count: int, **fields: Any) -> None:
    for _ in range(count):
        model.observe(timing(**fields))


def test_rows_cost_what_the_smallest_measured_size_that_holds_them_costs() -> None:
    model = StepTimeModel(CURVE)

    assert [model.verify_s(rows) for rows in range(1, 9)] == [1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]


def test_without_buckets_rows_between_two_sizes_cost_something_between() -> None:
    model = StepTimeModel({2: 1.0, 4: 2.0, 8: 4.0}, interpolate=True)

    assert [model.verify_s(rows) for rows in range(1, 9)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]


@pytest.mark.parametrize("interpolate", [False, True])
def test_above_the_largest_size_the_last_line_goes_on(interpolate: bool) -> None:
    model = StepTimeModel(CURVE, interpolate=interpolate)

    assert [model.verify_s(rows) for rows in (9, 12)] == [4.5, 6.0]


def test_one_size_alone_goes_on_by_its_own_rows() -> None:
    assert StepTimeModel({4: 2.0}).verify_s(6) == 3.0


def test_curve_that_falls_is_made_monotone() -> None:
    model = StepTimeModel({1: 1.0, 2: 3.0, 4: 2.0, 8: 4.0})

    assert [model.verify_s(rows) for rows in (1, 2, 4, 8)] == [1.0, 3.0, 3.0, 4.0]


@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0, math.inf])
def test_times_that_are_none_are_refused_in_words(bad: float) -> None:
    with pytest.raises(ConfigError, match=r"decode steps of size 4 took .* s; a time is a number above 0"):
        StepTimeModel({1: 1.0, 4: bad})
    with pytest.raises(ConfigError, match=r"the draft module of size 2 took"):
        StepTimeModel(CURVE, draft={2: bad})


def test_empty_curves_are_refused_and_all_problems_named() -> None:
    with pytest.raises(ConfigError, match=r"no times of decode steps were measured; measure at least two sizes"):
        StepTimeModel({})
    with pytest.raises(ConfigError) as caught:
        StepTimeModel({0: 1.0, 1: -1.0}, draft={})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("flat", [{1: 1.0, 8: 1.0}, {1: 2.0, 8: 1.0}, {8: 1.0}])
def test_flat_curve_is_reported_once(flat: dict[int, float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "deepinfer"):
        model = StepTimeModel(flat)
        observe(model, 20)

    [record] = caplog.records
    assert "adaptive draft lengths will verify every draft" in record.getMessage()


def test_other_curves_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "deepinfer"):
        StepTimeModel(CURVE)

    assert not caplog.records


def test_what_steps_take_counts_once_a_size_has_enough_of_them() -> None:
    model = StepTimeModel(CURVE)

    observe(model, FACTOR_SAMPLES - 1, num_rows=3, verify_s=2.4)
    assert model.verify_s(3) == 2.0
    observe(model, 1, num_rows=3, verify_s=2.4)

    assert [model.verify_s(rows) for rows in (1, 3, 8, 10)] == pytest.approx([1.2, 2.4, 4.8, 6.0])


def test_each_size_has_its_own_factor_and_others_the_median() -> None:
    model = StepTimeModel({1: 1.0, 4: 2.0, 8: 4.0, 16: 8.0})

    observe(model, 500, num_rows=1, verify_s=1.1)
    observe(model, 10, num_rows=4, verify_s=4.0)
    observe(model, 10, num_rows=8, verify_s=2.0)

    assert [model.factor(rows) for rows in (1, 3, 4, 7, 16)] == pytest.approx([1.1, 2.0, 2.0, 0.5, 1.1])


def test_prices_never_fall_with_rows() -> None:
    model = StepTimeModel(CURVE)

    observe(model, 10, num_rows=8, verify_s=0.1)
    observe(model, 10, num_rows=4, verify_s=3.0)

    prices = [piece.seconds(rows) for piece in model.pieces(1, 8) for rows in range(piece.first, piece.last + 1)]
    assert prices == sorted(prices)


def test_old_steps_are_forgotten() -> None:
    model = StepTimeModel(CURVE)

    observe(model, FACTOR_STEPS, num_rows=4, verify_s=20.0)
    observe(model, FACTOR_STEPS // 2 + 1, num_rows=4, verify_s=2.4)

    assert model.factor(4) == pytest.approx(1.2)


BEYOND = 20
"""More rows than the largest measured size."""


@given(st.lists(st.tuples(st.sampled_from([1, 3, 4, 8, 11]), st.floats(0.5, 9.0)), max_size=80))
def test_factor_is_a_median(steps: list[tuple[int, float]]) -> None:
    model, samples = StepTimeModel(CURVE), dict[int, list[float]]()
    for rows, seconds in steps:
        size = next((size for size in CURVE if size >= rows), BEYOND)
        base = 4.0 + 0.5 * (rows - 8) if rows > 8 else CURVE[size]
        samples.setdefault(size, []).append(seconds / base)
        model.observe(timing(rows, seconds))

    known = {size: median(values[-FACTOR_STEPS:]) for size, values in samples.items() if len(values) >= FACTOR_SAMPLES}
    measured = [factor for size, factor in known.items() if size != BEYOND]
    usual = median(measured) if measured else 1.0
    sizes = [*CURVE, BEYOND]
    assert [model.factor(size) for size in sizes] == pytest.approx([known.get(size, usual) for size in sizes])
    assert [model.knows_size(size) for size in sizes] == [size in known for size in sizes]


def test_sizes_that_were_not_measured_say_nothing_about_those_that_were() -> None:
    model = StepTimeModel(CURVE)

    observe(model, FACTOR_SAMPLES, num_rows=16, verify_s=16.0)  # the straight line says 8

    assert model.verify_s(16) == pytest.approx(16.0)
    assert model.verify_s(8) == pytest.approx(CURVE[8])
    assert model.pieces(8, 16)[-1].seconds(16) == pytest.approx(16.0)


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_times_that_are_none_teach_nothing(bad: float) -> None:
    model = StepTimeModel(CURVE)

    observe(model, 20, verify_s=bad, rest_s=bad)

    assert model.factor(1) == 1.0
    assert model.rest_s(1, proposes=True) == 0.0


def test_sampler_is_the_median_of_the_last_steps_with_as_many_sequences() -> None:
    model = StepTimeModel(CURVE)

    for seconds in (9.0,) * 4:
        model.observe(timing(rest_s=seconds, num_sequences=4))
    assert model.rest_s(4, proposes=True) == 0.0
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0):
        model.observe(timing(rest_s=seconds, num_sequences=4))

    assert model.rest_s(4, proposes=True) == 5.0


def test_sampler_of_other_sequences_lies_between_the_nearest() -> None:
    model = StepTimeModel(CURVE)

    observe(model, REST_SAMPLES, rest_s=1.0, num_sequences=4)
    observe(model, REST_SAMPLES, rest_s=3.0, num_sequences=8)

    assert [model.rest_s(count, proposes=True) for count in (1, 4, 5, 6, 8, 99)] == [1.0, 1.0, 1.5, 2.0, 3.0, 3.0]


def test_draft_module_takes_what_was_measured_until_steps_show_it() -> None:
    model = StepTimeModel(CURVE, draft={1: 1.0, 5: 2.0})
    assert [model.draft_s(count) for count in (1, 3, 9)] == [1.0, 1.5, 3.0]

    observe(model, REST_SAMPLES, rest_s=4.0, num_sequences=4)
    assert model.rest_s(4, proposes=False) == pytest.approx(4.0 - 1.75)
    observe(model, REST_SAMPLES, rest_s=1.0, num_sequences=4, proposed=False)

    assert model.draft_s(4) == 3.0
    assert model.rest_s(4, proposes=False) == 1.0


def test_steps_without_drafts_tell_what_steps_with_them_will_take() -> None:
    model = StepTimeModel(CURVE, draft={1: 1.0, 5: 2.0})

    observe(model, REST_SAMPLES, rest_s=1.0, num_sequences=4, proposed=False)

    assert model.rest_s(4, proposes=True) == pytest.approx(2.75)


def test_far_away_sizes_are_not_compared_with_near_ones() -> None:
    model = StepTimeModel(CURVE, draft={1: 0.1, 256: 0.1})

    observe(model, REST_SAMPLES, rest_s=1.0, num_sequences=4)
    observe(model, REST_SAMPLES, rest_s=9.0, num_sequences=256, proposed=False)

    assert model.draft_s(4) == pytest.approx(0.1)
    assert model.draft_s(256) == pytest.approx(0.1)


def test_draft_seconds_are_a_guess_until_steps_without_it_ran() -> None:
    model = StepTimeModel(CURVE)

    observe(model, REST_SAMPLES, rest_s=1.0, num_sequences=4)
    assert not model.knows_draft(4)
    observe(model, REST_SAMPLES, rest_s=0.5, num_sequences=4, proposed=False)

    assert model.knows_draft(8)
    assert not model.knows_draft(9)
    assert StepTimeModel(CURVE, draft={1: 1.0}).knows_draft(256)


def test_whole_step_is_forward_and_sampler() -> None:
    model = StepTimeModel(CURVE, draft={1: 0.5})

    assert model.seconds(1, 4, proposes=True) == 2.5
    assert model.seconds(1, 4, proposes=False) == 2.0


@given(st.integers(1, 20), st.integers(0, 20), st.booleans())
def test_pieces_hold_the_price_of_every_number_of_rows(fewest: int, more: int, interpolate: bool) -> None:
    model, most = StepTimeModel(CURVE, interpolate=interpolate), fewest + more

    pieces = model.pieces(fewest, most)

    assert [rows for piece in pieces for rows in range(piece.first, piece.last + 1)] == [*range(fewest, most + 1)]
    for piece in pieces:
        for rows in range(piece.first, piece.last + 1):
            assert piece.seconds(rows) == pytest.approx(model.verify_s(rows))
