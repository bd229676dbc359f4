"""The cycle of plan and apply, and what a scheduler tells about itself."""

from __future__ import annotations

import logging

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.step_plan import Outcome, StepKind
from tests.unit.scheduler.builders import add, make_scheduler, planned, step


def test_nothing_to_do_is_no_plan() -> None:
    assert make_scheduler().plan(0.0) is None


def test_planning_with_two_steps_in_flight_breaks_an_invariant() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    planned(scheduler)
    planned(scheduler)

    with pytest.raises(InternalError, match="before the ones before it were applied"):
        scheduler.plan(0.0)


def test_applying_twice_breaks_an_invariant() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    plan = step(scheduler)

    with pytest.raises(InternalError, match="before the one before it"):
        scheduler.apply(plan, [Outcome(token_ids=(1,))])


def test_wrong_number_of_outcomes_breaks_an_invariant_and_changes_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", "b")
    plan = planned(scheduler)

    with pytest.raises(InternalError, match="1 outcomes for 2 entries"):
        scheduler.apply(plan, [Outcome(token_ids=(1,))])

    scheduler.apply(plan, [Outcome(token_ids=(1,)), Outcome(token_ids=(2,))])


def test_statistics_count_what_happened() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, "a", num_prompt_tokens=130, max_tokens=3)
    add(scheduler, "b", "c", num_prompt_tokens=10)
    for _ in range(3):
        step(scheduler)

    statistics = scheduler.statistics()

    assert (statistics.num_waiting, statistics.num_running, statistics.num_queued_tokens) == (2, 0, 20)
    assert (statistics.num_free_blocks, statistics.num_free_state_slots) == (16, 8)
    assert statistics.totals.num_steps == {StepKind.PREFILL: 1, StepKind.DECODE: 2}
    assert statistics.totals.num_tokens == {StepKind.PREFILL: 130, StepKind.DECODE: 2}
    assert statistics.totals.num_finished == {FinishReason.LENGTH: 1}


def test_snapshot_does_not_change_later() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    statistics = scheduler.statistics()

    step(scheduler)

    assert statistics.totals.num_steps[StepKind.PREFILL] == 0
    assert statistics.num_waiting == 1


def test_cache_that_lowers_the_limit_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="deepinfer"):
        make_scheduler(num_blocks=2)

    [record] = caplog.records
    assert "the cache holds 256 tokens" in record.getMessage()
