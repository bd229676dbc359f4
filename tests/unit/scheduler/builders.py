"""Small schedulers and sequences, and a step without a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.prefix_cache.wanted import Choose
from deepinfer_core.scheduler.drafts import Proposal
from deepinfer_core.scheduler.policy import SchedulingPolicy
from deepinfer_core.scheduler.prefix_cache import Fetch, Save
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import Outcome, StepPlan

TOKEN = 7
"""What every row yields unless a test says otherwise."""


def make_scheduler(
    num_blocks: int = 16,
    policy: SchedulingPolicy | None = None,
    prefix_cache: PrefixCacheConfig | None = None,
    **knobs: Any,
) -> Scheduler:
    """A scheduler with eight state slots; ``knobs`` are fields of its configuration."""
    config = SchedulerConfig(**{"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, **knobs})
    return Scheduler(config, num_blocks=num_blocks, num_state_slots=8, policy=policy, prefix_cache=prefix_cache)


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


ROOT = b"sixteen bytes of"
"""A cache root."""
EXACT = PrefixCacheConfig(mode="exact", num_snapshots=4)
BOUNDED = PrefixCacheConfig(mode="bounded")


class Tier:
    """An outer tier of the prefix cache in memory; what is in ``broken`` seems to be there and cannot be read."""

    def __init__(self) -> None:
        self.payloads: dict[bytes, bytes] = {}
        self.broken: set[bytes] = set()
        self.num_questions = 0

    def contains(self, key: bytes) -> bool:
        self.num_questions += 1
        return key in self.payloads

    def delete(self, key: bytes) -> None:
        self.payloads.pop(key, None)

    def fetch(self, choose: Choose) -> Fetch | None:  # noqa: ARG002  # the protocol's name
        return None

    def get(self, key: bytes) -> bytes | None:
        return None if key in self.broken else self.payloads.get(key)

    def save(self, scheduler: Scheduler) -> list[Save]:
        """Take all that may be saved; the payload is the key."""
        saves = scheduler.prefix_cache.take_saves()
        self.payloads.update((save.key, save.key) for save in saves)
        return saves


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    """The next plan, of which there must be one."""
    plan = scheduler.plan(now)
    assert plan is not None
    return plan


def step(scheduler: Scheduler, now: float = 0.0, token_id: int = TOKEN) -> StepPlan:
    """Plan and apply one step in which every row yields the same token."""
    plan = planned(scheduler, now)
    scheduler.apply(plan, outcomes(plan, token_id))
    return plan


def run(scheduler: Scheduler, request_id: str, prompt: Iterable[int], max_tokens: int = 1) -> Sequence:
    """A sequence that may use the prefix cache, from arrival to end."""
    sequence = Sequence(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, cache_root=ROOT)
    scheduler.add(sequence)
    while not sequence.is_finished:
        step(scheduler)
    return sequence


def outcomes(plan: StepPlan, token_id: int = TOKEN) -> list[Outcome]:
    """The same token from every row that yields one."""
    return [Outcome(token_ids=(token_id,)) for _ in plan.sampling_entries]


def rows(plan: StepPlan) -> list[tuple[str, int, int]]:
    """Request, start and number of rows of each entry."""
    return [(entry.sequence.request_id, entry.start, entry.num_tokens) for entry in plan.entries]


def drafts(count: int) -> Proposal:
    """So many drafts that are sure to be accepted."""
    return Proposal(tuple(range(101, 101 + count)), (1.0,) * count)
