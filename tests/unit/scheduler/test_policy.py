"""The default policy, and policies of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.policy import DefaultPolicy, Load
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import StepKind
from tests.unit.scheduler.builders import add, make_scheduler, make_sequence, rows, step

CONFIG = SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=512)


def test_lower_priority_values_are_served_first_and_equals_by_arrival() -> None:
    scheduler = make_scheduler()
    for request_id, priority in (("a", 0), ("b", 1), ("c", -1), ("d", 0)):
        scheduler.add(make_sequence(request_id, priority=priority))

    assert [request_id for request_id, *_ in rows(step(scheduler))] == ["c", "a", "d", "b"]


def test_overtaking_by_priority_is_bounded() -> None:
    scheduler = make_scheduler(max_num_seqs=1, arrivals_per_priority=3)
    scheduler.add(make_sequence("patient", priority=1, max_tokens=1))
    add(scheduler, *"abcdef", max_tokens=1)

    served = [rows(step(scheduler))[0][0] for _ in range(7)]

    assert served == ["a", "b", "patient", "c", "d", "e", "f"]


def test_prompt_may_be_split_only_if_configured() -> None:
    whole = DefaultPolicy(SchedulerConfig(chunked_prefill=False, max_num_batched_tokens=512))
    sequence = make_sequence(num_prompt_tokens=100)

    assert [DefaultPolicy(CONFIG).chunk_size(sequence, num_rows) for num_rows in (40, 100, 512)] == [40, 100, 100]
    assert [whole.chunk_size(sequence, num_rows) for num_rows in (40, 100, 512)] == [0, 100, 100]


@dataclass(frozen=True, slots=True)
class DecodeFirst(DefaultPolicy):
    """Finishes what runs before it lets anybody in."""

    def kind(self, load: Load) -> StepKind:
        return StepKind.DECODE if load.num_decoding else StepKind.PREFILL


@dataclass(frozen=True, slots=True)
class ShortestFirst(DefaultPolicy):
    """Short prompts first."""

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        return sequence.num_prompt_tokens, sequence.arrival


@dataclass(frozen=True, slots=True)
class TooMuch(DefaultPolicy):
    """Gives more rows than there are."""

    def chunk_size(self, sequence: Sequence, num_free_rows: int) -> int:
        return sequence.num_uncomputed_tokens + num_free_rows


def test_policy_chooses_the_kind_of_step() -> None:
    scheduler = make_scheduler(policy=DecodeFirst(CONFIG))
    add(scheduler, "a", max_tokens=3)
    step(scheduler)
    add(scheduler, "b")

    kinds = [step(scheduler).kind.value for _ in range(3)]

    assert kinds == ["decode", "decode", "prefill"]


def test_policy_chooses_the_order() -> None:
    scheduler = make_scheduler(policy=ShortestFirst(CONFIG))
    add(scheduler, "long", num_prompt_tokens=50)
    add(scheduler, "short", num_prompt_tokens=5)

    assert [request_id for request_id, *_ in rows(step(scheduler))] == ["short", "long"]


def test_policy_that_gives_rows_which_do_not_exist_breaks_an_invariant() -> None:
    scheduler = make_scheduler(policy=TooMuch(CONFIG))
    add(scheduler, "a")

    with pytest.raises(InternalError, match="the policy gave 517 of at most 5 rows"):
        scheduler.plan(0.0)
