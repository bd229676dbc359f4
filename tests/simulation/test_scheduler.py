"""The scheduler over ten thousand requests, with its invariants checked after every step."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.scheduler.sequence import FinishReason
from tests.simulation.simulation import LEASE_TIME, Report, Simulation, Troubles
from tests.simulation.workload import arrivals

LONGEST_PROMPT = 600
LONGEST_OUTPUT = 60
NO_TROUBLES = Troubles()
ARRIVALS_PER_PRIORITY = 50
PRIORITY_LEVELS = 2
"""Between the lowest and the highest priority of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A configuration and its load.

    Attributes:
        config: Budgets.
        num_blocks: Size of the cache.
        per_step: Requests that arrive in the time of a step; more than can be served, so that queues are long.
        troubles: What goes wrong.
    """

    config: SchedulerConfig
    num_blocks: int
    per_step: float
    troubles: Troubles = NO_TROUBLES


def config(**knobs: Any) -> SchedulerConfig:
    """Budgets of a small engine."""
    return SchedulerConfig(max_model_len=1024, arrivals_per_priority=ARRIVALS_PER_PRIORITY, **knobs)


SCENARIOS = {
    "roomy": Scenario(
        config=config(max_num_seqs=64, max_num_batched_tokens=1024),
        num_blocks=400,
        per_step=0.8,
    ),
    "tiny_cache": Scenario(
        config=config(max_num_seqs=16, max_num_batched_tokens=200, headroom_blocks=0),
        num_blocks=12,
        per_step=0.2,
        troubles=Troubles(step_fails=0.01),
    ),
    "whole_prompts": Scenario(
        config=config(max_num_seqs=32, max_num_batched_tokens=500, chunked_prefill=False),
        num_blocks=24,
        per_step=0.4,
    ),
    "drafts_and_transfers": Scenario(
        config=config(max_num_seqs=24, max_num_batched_tokens=60, max_prefill_steps_in_a_row=4, headroom_blocks=0),
        num_blocks=30,
        per_step=0.2,
        troubles=Troubles(num_drafts=4, lease=0.2, step_fails=0.01),
    ),
    "overlapped": Scenario(
        config=config(max_num_seqs=16, max_num_batched_tokens=200, headroom_blocks=0),
        num_blocks=12,
        per_step=0.2,
        troubles=Troubles(step_fails=0.01, overlap=0.9),
    ),
    "mixed_and_overlapped": Scenario(
        config=config(
            max_num_seqs=24, max_num_batched_tokens=60, max_chunk_tokens=40, step_policy="mixed", headroom_blocks=0
        ),
        num_blocks=30,
        per_step=0.2,
        troubles=Troubles(num_drafts=4, lease=0.2, step_fails=0.01, overlap=0.9),
    ),
}


def simulate(name: str, count: int, seed: int) -> Report:
    """Run one scenario to its end."""
    scenario = SCENARIOS[name]
    load = arrivals(
        random.Random(seed),
        count,
        per_step=scenario.per_step,
        longest_prompt=LONGEST_PROMPT,
        longest_output=LONGEST_OUTPUT,
    )
    return Simulation(
        scenario.config, load, num_blocks=scenario.num_blocks, seed=seed, troubles=scenario.troubles
    ).run()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_invariant_holds_over_850_requests(name: str, seed: int) -> None:
    report = simulate(name, 850, seed)

    print(f"\n{name}: {report}")
    assert all(report.finished[reason] > 0 for reason in FinishReason)
    assert report.most_overtaken <= PRIORITY_LEVELS * ARRIVALS_PER_PRIORITY
    assert (report.num_overlapped > report.num_steps / 2) == (SCENARIOS[name].troubles.overlap > 0)
    assert report.longest_at_front <= longest_wait_at_front(SCENARIOS[name])


def longest_wait_at_front(scenario: Scenario) -> float:
    """Steps after which nobody is left who could keep the first waiting sequence from being admitted.

    While it waits nobody else is admitted, so that those who run reach their end or join the queue behind it: at most
    one has chunks left, everybody gets a token in every decode step, and transfers end by time.
    """
    num_chunks = math.ceil(scenario.config.max_model_len / scenario.config.max_num_batched_tokens)
    return num_chunks + LONGEST_OUTPUT + (LEASE_TIME if scenario.troubles.lease else 0)


def test_same_seed_gives_the_same_steps() -> None:
    reports = [simulate("tiny_cache", 200, seed=2) for _ in range(2)]

    assert reports[0] == reports[1]
    assert reports[0].trace != simulate("tiny_cache", 200, seed=3).trace


def test_tiny_cache_forces_preemption() -> None:
    assert simulate("tiny_cache", 200, seed=2).num_preemptions > 20
