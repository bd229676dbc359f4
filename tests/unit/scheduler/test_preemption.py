"""Preemption by recompute."""

from __future__ import annotations

from deepinfer_core.scheduler.sequence import FinishReason, SequenceStatus
from deepinfer_core.scheduler.step_plan import Outcome, StepKind
from tests.unit.scheduler.builders import add, make_scheduler, make_sequence, planned, rows, step


def test_latest_arrival_gives_its_memory_to_those_before_it() -> None:
    scheduler = make_scheduler(num_blocks=3, headroom_blocks=0)
    a, b, c = add(scheduler, "a", "b", "c", num_prompt_tokens=127)
    step(scheduler)
    step(scheduler)

    plan = step(scheduler)

    assert plan.preempted == (c, b)
    assert [entry.sequence for entry in plan.entries] == [a]
    assert (b.status, b.block_ids, b.state_slot, b.num_computed_tokens) == (SequenceStatus.WAITING, [], 0, 0)


def test_lowest_priority_goes_before_latest_arrival() -> None:
    scheduler = make_scheduler(num_blocks=2, headroom_blocks=0)
    urgent = make_sequence("urgent", num_prompt_tokens=127, priority=-1)
    [patient] = add(scheduler, "patient", num_prompt_tokens=127)
    scheduler.add(urgent)
    step(scheduler)
    step(scheduler)

    assert step(scheduler).preempted == (patient,)
    assert urgent.num_preemptions == 0


def test_preempted_sequence_is_computed_anew_with_its_output_and_goes_on() -> None:
    scheduler = make_scheduler(num_blocks=2, headroom_blocks=0)
    a, b = add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=6)
    for token_id in (11, 12):
        step(scheduler, token_id=token_id)
    step(scheduler)
    assert b.num_preemptions == 1

    while not a.is_finished:
        step(scheduler)
    recompute = step(scheduler, token_id=13)

    assert recompute.kind is StepKind.PREFILL
    assert rows(recompute) == [("b", 0, 129)]
    assert recompute.entries[0].token_ids == [*range(1, 128), 11, 12]
    assert b.output_token_ids == [11, 12, 13]


def test_preempted_sequence_goes_before_those_who_arrived_later() -> None:
    scheduler = make_scheduler(num_blocks=2, headroom_blocks=0)
    add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=4)
    add(scheduler, "c")

    first_rows = [rows(step(scheduler))[0] for _ in range(6)]

    assert [request_id for request_id, start, _ in first_rows if start == 0] == ["a", "b"]


def test_recompute_may_be_split_where_prompts_may_not() -> None:
    scheduler = make_scheduler(num_blocks=2, max_num_batched_tokens=127, chunked_prefill=False, headroom_blocks=0)
    _, b = add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=3)
    while not b.num_preemptions:
        step(scheduler)
    num_tokens = b.num_tokens

    chunks = [row for _ in range(2) for row in rows(step(scheduler))]

    assert num_tokens > 127
    assert chunks == [("b", 0, 127), ("b", 127, num_tokens - 127)]


def test_nothing_is_lost_when_sequences_take_turns() -> None:
    scheduler = make_scheduler(num_blocks=3, headroom_blocks=0)
    sequences = add(scheduler, *"abcdef", num_prompt_tokens=120, max_tokens=40)

    while scheduler.has_unfinished:
        step(scheduler)

    assert scheduler.statistics().num_preemptions > 0
    assert scheduler.take_finished() == sequences
    assert {(s.num_output_tokens, s.finish_reason) for s in sequences} == {(40, FinishReason.LENGTH)}
    scheduler.require_all_free()


def test_sequence_that_is_being_prefilled_may_be_preempted() -> None:
    scheduler = make_scheduler(
        num_blocks=4, max_num_batched_tokens=130, max_prefill_steps_in_a_row=1, headroom_blocks=0
    )
    add(scheduler, "a", num_prompt_tokens=127, max_tokens=9)
    [b] = add(scheduler, "b", num_prompt_tokens=300)
    step(scheduler)
    assert b.status is SequenceStatus.PREFILLING

    while not b.num_preemptions:
        step(scheduler)

    assert (b.status, b.num_computed_tokens) == (SequenceStatus.WAITING, 0)


def test_failed_step_is_taken_back_and_its_sequences_start_over() -> None:
    scheduler = make_scheduler()
    a, b = add(scheduler, "a", "b")
    step(scheduler, token_id=11)
    plan = planned(scheduler)
    scheduler.finish(b, FinishReason.ERROR, "out of memory")

    scheduler.cancel(plan)

    assert rows(planned(scheduler)) == [("a", 0, 6)]
    assert a.output_token_ids == [11]
    assert b.block_ids == []


def test_row_that_fails_ends_its_sequence_alone() -> None:
    scheduler = make_scheduler()
    a, b = add(scheduler, "a", "b")
    step(scheduler)

    failed = Outcome(token_ids=(), finish_reason=FinishReason.ERROR, stop_reason="logits are not finite")
    scheduler.apply(planned(scheduler), [failed, Outcome(token_ids=(9,))])

    assert (a.finish_reason, a.stop_reason) == (FinishReason.ERROR, "logits are not finite")
    assert b.output_token_ids[-1] == 9
    assert rows(planned(scheduler)) == [("b", 6, 1)]
