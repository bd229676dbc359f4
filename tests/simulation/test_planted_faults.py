"""The simulation must notice when a scheduler goes wrong: every fault here is one that it has to find."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.policy import DefaultPolicy, SchedulingPolicy
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import StepPlan
from tests.simulation.invariants import check_plan, check_state
from tests.simulation.null_executor import NullExecutor
from tests.simulation.simulation import Simulation, Troubles
from tests.simulation.workload import arrivals

CONFIG = SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=256)


@dataclass(frozen=True, slots=True)
class LastComeFirstServed(DefaultPolicy):
    """Starves whoever came first."""

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        return (-sequence.arrival,)


@dataclass(frozen=True, slots=True)
class Idle(DefaultPolicy):
    """Never gives anybody a row."""

    def chunk_size(self, sequence: Sequence, num_free_rows: int) -> int:
        return min(0, sequence.num_uncomputed_tokens, num_free_rows)


@dataclass(frozen=True, slots=True)
class Generous(DefaultPolicy):
    """Gives out rows that the step does not have."""

    def chunk_size(self, sequence: Sequence, num_free_rows: int) -> int:
        return max(sequence.num_uncomputed_tokens, num_free_rows)


def simulation(policy: SchedulingPolicy) -> Simulation:
    """A short run under a policy."""
    load = arrivals(random.Random(1), 200, per_step=1.0, longest_prompt=600, longest_output=20)
    return Simulation(CONFIG, load, num_blocks=20, seed=1, troubles=Troubles(), policy=policy)


def two_running() -> tuple[Scheduler, StepPlan, NullExecutor]:
    """A scheduler about to run its first decode step, of two sequences."""
    scheduler = Scheduler(CONFIG, num_blocks=20, num_state_slots=8)
    executor = NullExecutor(random.Random(1), fails_at={}, num_drafts=0)
    for request_id in ("a", "b"):
        scheduler.add(Sequence(request_id=request_id, prompt_token_ids=range(1, 131 - 20), max_tokens=50))
    prefill = scheduler.plan(0.0)
    assert prefill is not None
    scheduler.apply(prefill, executor.run(prefill))
    decode = scheduler.plan(0.0)
    assert decode is not None
    return scheduler, decode, executor


def test_unfair_order_shows_as_overtaking() -> None:
    assert simulation(LastComeFirstServed(CONFIG)).run().most_overtaken > 50


@pytest.mark.parametrize("policy", [Idle, Generous])
def test_policy_that_breaks_its_contract_ends_the_run(policy: Callable[[SchedulerConfig], SchedulingPolicy]) -> None:
    with pytest.raises(InternalError):
        simulation(policy(CONFIG)).run()


def share_a_block(a: Sequence, b: Sequence) -> None:
    b.block_ids[0] = a.block_ids[0]


def share_a_slot(a: Sequence, b: Sequence) -> None:
    b.state_slot = a.state_slot


def lose_a_block(a: Sequence, b: Sequence) -> None:
    a.block_ids.pop()


def use_the_dummy(a: Sequence, b: Sequence) -> None:
    a.state_slot = 0


def skip_a_token(a: Sequence, b: Sequence) -> None:
    a.num_computed_tokens -= 1


@pytest.mark.parametrize("fault", [share_a_block, share_a_slot, lose_a_block, use_the_dummy, skip_a_token])
def test_wrong_state_is_noticed_after_the_step(fault: Callable[[Sequence, Sequence], None]) -> None:
    scheduler, plan, executor = two_running()
    scheduler.apply(plan, executor.run(plan))
    check_state(scheduler)

    fault(*(entry.sequence for entry in plan.entries))

    with pytest.raises(AssertionError):
        check_state(scheduler)


@pytest.mark.parametrize("fault", [share_a_block, share_a_slot, use_the_dummy])
def test_memory_of_somebody_else_is_noticed_when_it_is_read(fault: Callable[[Sequence, Sequence], None]) -> None:
    _, plan, executor = two_running()

    fault(*(entry.sequence for entry in plan.entries))

    with pytest.raises((AssertionError, KeyError)):
        executor.run(plan)


def test_blocks_that_do_not_cover_the_rows_are_noticed_in_the_plan() -> None:
    scheduler, plan, _ = two_running()
    check_plan(plan, scheduler)

    plan.entries[0].sequence.block_ids.clear()

    with pytest.raises(AssertionError):
        check_plan(plan, scheduler)
