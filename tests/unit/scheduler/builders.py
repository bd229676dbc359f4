"""Small schedulers and sequences, and a step without a model."""

from __future__ import annotations

from typing import Any

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.scheduler.policy import SchedulingPolicy
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import Outcome, StepPlan

TOKEN = 7
"""What every row yields unless a test says otherwise."""


def make_scheduler(num_blocks: int = 16, policy: SchedulingPolicy | None = None, **knobs: Any) -> Scheduler:
    """A scheduler with eight state slots; ``knobs`` are fields of its configuration."""
    config = SchedulerConfig(**{"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, **knobs})
    return Scheduler(config, num_blocks=num_blocks, num_state_slots=8, policy=policy)


def make_sequence(request_id: str = "a", num_prompt_tokens: int = 5, max_tokens: int = 100, **fields: Any) -> Sequence:
    """A sequence whose prompt is 1, 2, 3 and so on."""
    return Sequence(
        request_id=request_id, prompt_token_ids=range(1, num_prompt_tokens + 1), max_tokens=max_tokens, **fields
    )


def add(scheduler: Scheduler, *request_ids: str, **fields: Any) -> list[Sequence]:
    """Add equal sequences."""
    sequences = [make_sequence(request_id, **fields) for request_id in request_ids]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    """The next plan, of which there must be one."""
    plan = scheduler.plan(now)
    assert plan is not None
    return plan


def step(scheduler: Scheduler, now: float = 0.0, token_id: int = TOKEN) -> StepPlan:
    """Plan and apply one step in which every row yields the same token."""
    plan = planned(scheduler, now)
    scheduler.apply(plan, [Outcome(token_ids=(token_id,)) for _ in plan.sampling_entries])
    return plan


def rows(plan: StepPlan) -> list[tuple[str, int, int]]:
    """Request, start and number of rows of each entry."""
    return [(entry.sequence.request_id, entry.start, entry.num_tokens) for entry in plan.entries]
