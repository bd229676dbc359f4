"""Steps that decode and read prompts at once, and prompts that wait for others."""

from __future__ import annotations

import pytest

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.scheduler.policy import DefaultPolicy, Load, MixedPolicy
from deepinfer_core.scheduler.step_plan import StepKind
from tests.unit.scheduler.builders import add, make_scheduler, make_sequence, rows, step


def load(**fields: float) -> Load:
    """Sequences decode, and one prompt has just come."""
    usual = {"now": 0.0, "num_waiting": 1, "num_prefilling": 0, "num_decoding": 4, "num_waiting_tokens": 10}
    rest = {"longest_wait_s": 0.0, "num_prefill_steps_in_a_row": 0, "num_decode_steps_in_a_row": 0}
    return Load(**{**usual, **rest, **fields})


def test_mixed_step_decodes_all_and_reads_prompts_with_the_rows_that_are_left() -> None:
    scheduler = make_scheduler(step_policy="mixed", max_num_batched_tokens=50)
    add(scheduler, "a", "b")
    step(scheduler)
    add(scheduler, "c", num_prompt_tokens=100)

    plan = step(scheduler)

    assert plan.kind is StepKind.MIXED
    assert rows(plan) == [("a", 5, 1), ("b", 5, 1), ("c", 0, 48)]
    assert [entry.is_prefill for entry in plan.entries] == [False, False, True]
    assert [entry.sequence.request_id for entry in plan.sampling_entries] == ["a", "b"]


def test_mixed_policy_runs_what_there_is() -> None:
    scheduler = make_scheduler(step_policy="mixed")
    add(scheduler, "a", max_tokens=2)

    assert [step(scheduler).kind for _ in range(2)] == [StepKind.PREFILL, StepKind.DECODE]
    assert scheduler.plan(0.0) is None


def test_prompt_waits_while_decoding_takes_every_row() -> None:
    scheduler = make_scheduler(step_policy="mixed", max_num_seqs=3, max_num_batched_tokens=3)
    add(scheduler, "a", "b", num_prompt_tokens=1, max_tokens=4)
    step(scheduler)
    add(scheduler, "c", num_prompt_tokens=3)

    assert rows(step(scheduler)) == [("a", 1, 1), ("b", 1, 1), ("c", 0, 1)]


@pytest.mark.parametrize("policy", ["alternating", "mixed"])
def test_chunks_of_a_prompt_are_limited(policy: str) -> None:
    scheduler = make_scheduler(step_policy=policy, max_chunk_tokens=30)
    add(scheduler, "a", "b", num_prompt_tokens=70)

    plans = [step(scheduler) for _ in range(3)]

    assert [rows(plan)[:2] for plan in plans[:2]] == [
        [("a", 0, 30), ("b", 0, 30)],
        [("a", 30, 30), ("b", 30, 30)],
    ]


def test_chunk_limit_needs_chunks() -> None:
    with pytest.raises(ConfigError, match="max_chunk_tokens=30 splits prompts, but chunked_prefill is off"):
        SchedulerConfig(chunked_prefill=False, max_chunk_tokens=30)


@pytest.mark.parametrize(("kind", "other"), [(DefaultPolicy, StepKind.PREFILL), (MixedPolicy, StepKind.MIXED)])
def test_prompt_is_delayed_only_while_others_decode_none_waited_long_and_no_step_is_full(
    kind: type[DefaultPolicy], other: StepKind
) -> None:
    policy = kind(SchedulerConfig(max_num_batched_tokens=512, max_prefill_delay_ms=20))

    assert policy.kind(load()) is StepKind.DECODE
    assert policy.kind(load(longest_wait_s=0.019)) is StepKind.DECODE
    assert policy.kind(load(longest_wait_s=0.02)) is other
    assert policy.kind(load(num_waiting_tokens=512)) is other
    assert policy.kind(load(num_decoding=0)) is other
    assert policy.kind(load(num_prefilling=1)) is other
    assert kind(SchedulerConfig()).kind(load()) is other


@pytest.mark.parametrize("step_policy", ["alternating", "mixed"])
def test_idle_engine_starts_a_prompt_at_once(step_policy: str) -> None:
    scheduler = make_scheduler(step_policy=step_policy, max_prefill_delay_ms=1000)
    add(scheduler, "a", arrival_time=5.0)

    assert rows(step(scheduler, now=5.0)) == [("a", 0, 5)]


@pytest.mark.parametrize("step_policy", ["alternating", "mixed"])
def test_delayed_prompts_are_read_together_when_the_first_waited_long_enough(step_policy: str) -> None:
    scheduler = make_scheduler(step_policy=step_policy, max_prefill_delay_ms=1000)
    add(scheduler, "a", arrival_time=0.0)
    step(scheduler)
    add(scheduler, "b", arrival_time=1.0)
    early = rows(step(scheduler, now=1.5))
    add(scheduler, "c", arrival_time=1.9)
    late = rows(step(scheduler, now=1.99))

    assert [request_id for request_id, *_ in early + late] == ["a", "a"]
    assert {request_id for request_id, *_ in rows(step(scheduler, now=2.0))} >= {"b", "c"}


def test_delayed_prompts_are_read_when_they_fill_a_step() -> None:
    scheduler = make_scheduler(max_prefill_delay_ms=1000)
    add(scheduler, "a")
    step(scheduler)
    add(scheduler, "b", num_prompt_tokens=400)
    early = rows(step(scheduler))
    add(scheduler, "c", num_prompt_tokens=112)

    assert [request_id for request_id, *_ in early] == ["a"]
    assert rows(step(scheduler)) == [("b", 0, 400), ("c", 0, 112)]


def test_full_queue_refuses_with_value_limit_and_remedy() -> None:
    scheduler = make_scheduler(max_num_waiting=2)
    add(scheduler, "a", "b")

    with pytest.raises(
        RequestError, match=r"2 sequences wait already, and max_num_waiting=2; try again later or raise"
    ):
        add(scheduler, "c")

    step(scheduler)
    add(scheduler, "c")


def test_request_with_several_answers_is_queued_as_a_whole() -> None:
    scheduler = make_scheduler(max_num_waiting=1)
    for index in range(3):
        scheduler.add(make_sequence("a", index=index))

    with pytest.raises(RequestError, match="3 sequences wait already"):
        add(scheduler, "b")
    assert scheduler.abort("a") == 3
