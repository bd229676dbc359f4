"""Admission and prefill steps."""

from __future__ import annotations

import pytest

from deepinfer_core.scheduler.sequence import SequenceStatus
from deepinfer_core.scheduler.step_plan import StepKind
from tests.unit.scheduler.builders import TOKEN, add, make_scheduler, rows, step


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", "b", num_prompt_tokens=10)

    plan = step(scheduler)

    assert plan.kind is StepKind.PREFILL
    assert rows(plan) == [("a", 0, 10), ("b", 0, 10)]
    assert plan.num_tokens == 20


def test_whole_prompt_yields_the_first_token() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", num_prompt_tokens=10)

    [entry] = step(scheduler).entries

    assert entry.samples
    assert sequence.output_token_ids == [TOKEN]
    assert sequence.status is SequenceStatus.DECODING
    assert sequence.num_computed_tokens == 10


def test_long_prompt_is_spread_over_steps_and_yields_a_token_in_the_last() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100, max_prefill_steps_in_a_row=9)
    [sequence] = add(scheduler, "a", num_prompt_tokens=250)

    plans = [step(scheduler) for _ in range(3)]

    assert [rows(plan) for plan in plans] == [[("a", 0, 100)], [("a", 100, 100)], [("a", 200, 50)]]
    assert [plan.entries[0].samples for plan in plans] == [False, False, True]
    assert sequence.num_output_tokens == 1


def test_next_prompt_begins_in_the_rows_that_the_last_chunk_left() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100)
    add(scheduler, "a", "b", num_prompt_tokens=150)

    plans = [step(scheduler) for _ in range(2)]

    assert [rows(plan) for plan in plans] == [[("a", 0, 100)], [("a", 100, 50), ("b", 0, 50)]]


def test_prompt_that_may_not_be_split_waits_for_a_step_with_enough_rows() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100, chunked_prefill=False)
    add(scheduler, "a", "b", num_prompt_tokens=60)
    add(scheduler, "c", num_prompt_tokens=40)

    plans = [step(scheduler) for _ in range(2)]

    assert [rows(plan) for plan in plans] == [[("a", 0, 60)], [("b", 0, 60), ("c", 0, 40)]]


def test_no_more_sequences_are_admitted_than_may_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, "a", "b", "c")

    assert [request_id for request_id, *_ in rows(step(scheduler))] == ["a", "b"]
    assert scheduler.statistics().num_waiting == 1


def test_no_more_sequences_are_admitted_than_there_are_state_slots() -> None:
    scheduler = make_scheduler(max_num_seqs=10)
    add(scheduler, *"abcdefghi")

    assert len(step(scheduler).entries) == 8


def test_whole_prompt_and_the_next_token_have_their_blocks_from_the_first_chunk_on() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100)
    [sequence] = add(scheduler, "a", num_prompt_tokens=256)

    step(scheduler)

    assert len(sequence.block_ids) == 3
    assert sequence.state_slot == 1


@pytest.mark.parametrize(("headroom_blocks", "admitted"), [(0, ["a", "b", "c", "d"]), (1, ["a", "b"]), (2, ["a", "b"])])
def test_admission_leaves_head_room_for_those_who_may_grow(headroom_blocks: int, admitted: list[str]) -> None:
    scheduler = make_scheduler(num_blocks=4, headroom_blocks=headroom_blocks)
    add(scheduler, "a", "b", "c", "d", num_prompt_tokens=100)

    assert [request_id for request_id, *_ in rows(step(scheduler))] == admitted


def test_no_head_room_is_kept_for_sequences_that_end_within_their_blocks() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", "b", "c", "d", num_prompt_tokens=100, max_tokens=28)

    assert len(step(scheduler).entries) == 4


def test_sequence_that_is_alone_may_take_the_whole_cache() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", num_prompt_tokens=511)

    assert rows(step(scheduler)) == [("a", 0, 511)]


def test_nobody_is_admitted_past_one_that_does_not_fit_yet() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "first", num_prompt_tokens=300)
    add(scheduler, "large", num_prompt_tokens=200)
    add(scheduler, "small", num_prompt_tokens=5, max_tokens=5)

    assert [request_id for request_id, *_ in rows(step(scheduler))] == ["first"]
