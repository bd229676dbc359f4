"""Seconds from the tokens of one step to those of the next."""

from __future__ import annotations

from deepinfer_core.engine.step_pace import StepPace


def test_the_first_step_follows_nothing_and_others_the_one_before() -> None:
    pace = StepPace()

    assert [pace.lap(now) for now in (1.0, 1.5, 4.0)] == [None, 0.5, 2.5]


def test_a_pause_is_no_time_of_a_step() -> None:
    pace = StepPace()
    pace.lap(1.0)
    pace.pause()

    assert [pace.lap(now) for now in (9.0, 9.25)] == [None, 0.25]
