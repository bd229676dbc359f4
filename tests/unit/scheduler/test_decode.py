"""Decode steps, with and without drafts."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.step_plan import Outcome, StepKind
from tests.unit.scheduler.builders import TOKEN, add, drafts, make_scheduler, make_sequence, planned, rows, step


def test_every_running_sequence_gets_a_row() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", "b", num_prompt_tokens=10)
    step(scheduler)

    plan = step(scheduler)

    assert plan.kind is StepKind.DECODE
    assert rows(plan) == [("a", 10, 1), ("b", 10, 1)]
    assert [entry.token_ids for entry in plan.entries] == [[TOKEN], [TOKEN]]


def test_block_is_added_when_a_token_needs_it() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", num_prompt_tokens=127)

    num_blocks: list[int] = []
    for _ in range(3):
        step(scheduler)
        num_blocks.append(len(sequence.block_ids))

    assert num_blocks == [1, 1, 2]


def test_running_sequences_get_a_step_between_prefills() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100, max_prefill_steps_in_a_row=2)
    add(scheduler, "a", num_prompt_tokens=10)
    add(scheduler, "b", num_prompt_tokens=450)

    kinds = [step(scheduler).kind.value[0] for _ in range(8)]

    assert "".join(kinds) == "ppdppdpd"


def test_drafts_add_rows_that_the_blocks_cover() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", num_prompt_tokens=126)
    step(scheduler)
    sequence.proposal = drafts(3)

    plan = planned(scheduler)

    assert rows(plan) == [("a", 126, 4)]
    assert plan.entries[0].token_ids == [TOKEN]
    assert plan.entries[0].draft_token_ids == (101, 102, 103)
    assert len(sequence.block_ids) == 2


@pytest.mark.parametrize("accepted", [(21,), (21, 22), (21, 22, 23, 24)])
def test_only_accepted_drafts_count(accepted: tuple[int, ...]) -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", num_prompt_tokens=10)
    step(scheduler)
    sequence.proposal = drafts(3)

    scheduler.apply(planned(scheduler), [Outcome(token_ids=accepted)])

    assert sequence.output_token_ids == [TOKEN, *accepted]
    assert sequence.num_computed_tokens == 10 + len(accepted)
    assert rows(planned(scheduler)) == [("a", 10 + len(accepted), 1)]


def test_drafts_never_reach_past_the_last_token_or_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    for request_id, max_tokens in (("short", 3), ("a", 50), ("b", 50)):
        scheduler.add(make_sequence(request_id, num_prompt_tokens=2, max_tokens=max_tokens))
    for entry in step(scheduler).entries:
        entry.sequence.proposal = drafts(4)

    assert [num_tokens for *_, num_tokens in rows(planned(scheduler))] == [2, 5, 1]


def test_tokens_behind_the_end_are_dropped() -> None:
    scheduler = make_scheduler()
    [sequence] = add(scheduler, "a", stop_token_ids=frozenset({22}))
    step(scheduler)
    sequence.proposal = drafts(3)

    scheduler.apply(planned(scheduler), [Outcome(token_ids=(21, 22, 23))])

    assert sequence.output_token_ids == [TOKEN, 21, 22]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, 22)


@pytest.mark.parametrize("token_ids", [(), (1, 2)])
def test_more_or_fewer_tokens_than_rows_break_an_invariant(token_ids: tuple[int, ...]) -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    step(scheduler)

    with pytest.raises(InternalError, match="from 1 rows"):
        scheduler.apply(planned(scheduler), [Outcome(token_ids=token_ids)])
