"""A step that is planned while the one before it runs."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.sequence import FinishReason, SequenceStatus
from deepinfer_core.scheduler.step_plan import Outcome, StepKind
from tests.unit.scheduler.builders import TOKEN, add, drafts, make_scheduler, outcomes, planned, rows, step


def test_next_rows_follow_those_in_flight() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100)
    [sequence] = add(scheduler, "a", num_prompt_tokens=150)

    first, second = planned(scheduler), planned(scheduler)

    assert (rows(first), rows(second)) == ([("a", 0, 100)], [("a", 100, 50)])
    scheduler.apply(first, [])
    third = planned(scheduler)
    assert rows(third) == [("a", 150, 1)]
    assert third.entries[0].is_pending
    assert third.entries[0].token_ids == []
    scheduler.apply(second, outcomes(second, 11))
    assert third.entries[0].token_ids == [11]
    scheduler.apply(third, outcomes(third, 12))
    assert sequence.output_token_ids == [11, 12]


def test_no_row_follows_the_last_token_of_all() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", max_tokens=1)
    plan = planned(scheduler)

    assert scheduler.plan(0.0) is None

    scheduler.apply(plan, outcomes(plan))
    assert sequence.finish_reason is FinishReason.LENGTH


def test_no_row_follows_drafts_that_are_not_verified() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a")
    step(scheduler)
    sequence.proposal = drafts(2)
    plan = planned(scheduler)

    assert rows(plan) == [("a", 5, 3)]
    assert scheduler.plan(0.0) is None
    scheduler.apply(plan, [Outcome(token_ids=(1, 2))])
    assert rows(planned(scheduler))[0][1] == 7


def test_token_behind_an_end_is_dropped() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", eos_token_id=TOKEN)
    first, second = planned(scheduler), planned(scheduler)

    scheduler.apply(first, outcomes(first))
    num_free_while_running = scheduler.statistics().num_free_blocks
    scheduler.apply(second, outcomes(second))

    assert sequence.output_token_ids == [TOKEN]
    assert num_free_while_running == 15
    scheduler.require_all_free()


def test_steps_end_in_order() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    _, second = planned(scheduler), planned(scheduler)

    with pytest.raises(InternalError, match="a step ended before the one before it"):
        scheduler.apply(second, outcomes(second))


def test_preempted_sequence_keeps_the_token_of_its_step_in_flight() -> None:
    scheduler = make_scheduler(num_blocks=2, headroom_blocks=0)
    a, b = add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=3)
    step(scheduler, token_id=10)
    first, second = planned(scheduler), planned(scheduler)

    assert (rows(first), rows(second)) == ([("a", 127, 1), ("b", 127, 1)], [("a", 128, 1)])
    assert second.preempted == (b,)
    assert (b.status, b.block_ids, b.num_steps_in_flight) == (SequenceStatus.WAITING, [], 1)
    assert a.block_ids == [1, 2]
    scheduler.apply(first, outcomes(first, 11))
    scheduler.apply(second, outcomes(second, 12))
    recompute = planned(scheduler)

    assert (a.output_token_ids, b.output_token_ids) == ([10, 11, 12], [10, 11])
    assert rows(recompute) == [("b", 0, 129)]
    assert recompute.entries[0].token_ids[-2:] == [10, 11]


def test_memory_of_a_step_in_flight_is_not_there_for_who_was_preempted_for_it() -> None:
    scheduler = make_scheduler(num_blocks=2, headroom_blocks=0, step_policy="mixed")
    _, b = add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=3)
    step(scheduler)
    first, second = planned(scheduler), planned(scheduler)
    assert second.preempted == (b,)
    scheduler.abort("a")

    scheduler.apply(first, outcomes(first))
    assert scheduler.plan(0.0) is None
    scheduler.apply(second, outcomes(second))
    assert rows(planned(scheduler)) == [("b", 0, 129)]


def test_last_step_is_taken_back_first() -> None:
    scheduler = make_scheduler()
    [a] = add(scheduler, "a")
    first, second = planned(scheduler), planned(scheduler)

    scheduler.cancel(second)
    scheduler.cancel(first)

    assert (a.status, a.output_token_ids, a.block_ids) == (SequenceStatus.WAITING, [], [])
    assert rows(step(scheduler)) == [("a", 0, 5)]


def test_first_step_is_taken_back_alone_if_its_sequences_were_ended() -> None:
    scheduler = make_scheduler(max_prefill_steps_in_a_row=1)
    [a] = add(scheduler, "a")
    step(scheduler)
    first = planned(scheduler)
    [b] = add(scheduler, "b")
    second = planned(scheduler)
    assert (first.kind, rows(second)) == (StepKind.DECODE, [("b", 0, 5)])

    scheduler.finish(a, FinishReason.ERROR, "out of memory")
    scheduler.cancel(first)
    scheduler.apply(second, outcomes(second))

    assert b.output_token_ids == [TOKEN]
    assert a.block_ids == []


def test_step_that_a_later_one_builds_on_cannot_be_taken_back() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    first, _ = planned(scheduler), planned(scheduler)

    with pytest.raises(InternalError, match="a step failed that a later one"):
        scheduler.cancel(first)


def test_all_steps_can_be_taken_back_at_once() -> None:
    scheduler = make_scheduler()
    [a] = add(scheduler, "a")
    planned(scheduler)
    planned(scheduler)

    scheduler.cancel_all()
    scheduler.cancel_all()

    assert a.num_steps_in_flight == 0
    scheduler.abort("a")
    scheduler.require_all_free()
