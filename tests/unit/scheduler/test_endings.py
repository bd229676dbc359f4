"""How sequences end: by their tokens, by the caller, by time; always once."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.step_plan import Outcome
from tests.unit.scheduler.builders import TOKEN, add, make_scheduler, make_sequence, planned, rows, step


def test_end_of_text_stops_without_a_stop_reason() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", eos_token_id=TOKEN)

    step(scheduler)

    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, None)
    assert sequence.output_token_ids == [TOKEN]


def test_stop_token_is_the_stop_reason() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", stop_token_ids=frozenset({TOKEN}))

    step(scheduler)

    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, TOKEN)


def test_max_tokens_ends_with_length() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", max_tokens=3)

    while scheduler.has_unfinished:
        step(scheduler)

    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.num_output_tokens == 3


def test_caller_may_end_a_sequence_with_its_token() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", max_tokens=1)
    plan = planned(scheduler)

    scheduler.apply(plan, [Outcome(token_ids=(3,), finish_reason=FinishReason.STOP, stop_reason="ha")])

    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "ha")
    assert sequence.output_token_ids == [3]


def test_abort_ends_every_answer_of_a_request_and_no_other() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", index=0))
    scheduler.add(make_sequence("a", index=1))
    add(scheduler, "b")

    assert scheduler.abort("a") == 2
    assert [sequence.finish_reason for sequence in scheduler.take_finished()] == [FinishReason.ABORT] * 2
    assert rows(step(scheduler)) == [("b", 0, 5)]


def test_abort_of_an_unknown_or_finished_request_does_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    step(scheduler)

    assert (scheduler.abort("a"), scheduler.abort("never seen")) == (0, 0)
    assert len(scheduler.take_finished()) == 1


def test_abort_frees_memory_at_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    step(scheduler)

    scheduler.abort("a")

    scheduler.require_all_free()


def test_memory_of_a_step_that_runs_is_not_reused_before_the_step_ends() -> None:
    scheduler = make_scheduler(num_blocks=4)
    [sequence] = add(scheduler, "a", num_prompt_tokens=200)
    plan = planned(scheduler)

    scheduler.abort("a")
    num_free_while_running = scheduler.statistics().num_free_blocks
    finished_while_running = scheduler.take_finished()
    scheduler.apply(plan, [Outcome(token_ids=(9,))])

    assert num_free_while_running == 2
    assert finished_while_running == [sequence]
    assert sequence.output_token_ids == []
    assert scheduler.take_finished() == []
    scheduler.require_all_free()


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_deadline_ends_a_sequence_wherever_it_is(num_steps: int) -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", deadline=10.0)
    add(scheduler, "b")
    for _ in range(num_steps):
        step(scheduler, now=9.9)

    plan = step(scheduler, now=10.0)

    assert [entry.sequence.request_id for entry in plan.entries] == ["b"]
    assert sequence.finish_reason is FinishReason.TIMEOUT
    assert sequence.num_output_tokens == num_steps
    assert scheduler.take_finished() == [sequence]


def test_deadline_of_the_last_sequence_leaves_nothing_to_plan() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", deadline=1.0)

    assert scheduler.plan(2.0) is None
    assert not scheduler.has_unfinished


def test_first_reason_stands() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a")

    ended = [scheduler.finish(sequence, reason) for reason in (FinishReason.STOP, FinishReason.ERROR)]

    assert ended == [True, False]
    assert sequence.finish_reason is FinishReason.STOP
    assert scheduler.take_finished() == [sequence]


def test_ending_a_sequence_that_was_never_added_breaks_an_invariant() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")

    with pytest.raises(InternalError, match="is not in the queue"):
        scheduler.finish(make_sequence("a"), FinishReason.STOP)


def test_values_are_the_words_that_users_see() -> None:
    assert [reason.value for reason in FinishReason] == ["stop", "length", "abort", "timeout", "error"]
