"""The prefix cache under the same load: shared beginnings, aborts, preemption, failures, steps in flight."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.scheduler.sequence import FinishReason
from tests.simulation.lossy_tier import LossyTier
from tests.simulation.simulation import Report, Simulation, Troubles
from tests.simulation.slow_tier import SlowTier
from tests.simulation.workload import Arrival, conversations

EXACT = PrefixCacheConfig(mode="exact", num_snapshots=24)
TROUBLES = Troubles(step_fails=0.01, overlap=0.9)
SEED = 5
DISK_WAIT = 12.0
"""Some of the fetches of :class:`~tests.simulation.slow_tier.SlowTier` take longer, and some for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A prefix cache and what it has to live with.

    Attributes:
        prefix_cache: Mode and sizes.
        least_hit_rate: Part of the tokens that is found at least.
        config: Budgets that differ from those of the others.
        num_blocks: Size of the cache.
        per_step: Requests that arrive in the time of a step.
        num_outer: Payloads in an outer tier.
        outer_is_slow: Half of them are on a disk.
        troubles: What goes wrong.
    """

    prefix_cache: PrefixCacheConfig
    least_hit_rate: float
    config: dict[str, Any]
    num_blocks: int = 60
    per_step: float = 0.3
    num_outer: int = 0
    outer_is_slow: bool = False
    troubles: Troubles = TROUBLES


SCENARIOS = {
    "exact": Scenario(prefix_cache=EXACT, least_hit_rate=0.3, config={}),
    "bounded": Scenario(prefix_cache=PrefixCacheConfig(mode="bounded", keep_tokens=140), least_hit_rate=0.2, config={}),
    "bounded_with_states": Scenario(
        prefix_cache=PrefixCacheConfig(mode="bounded", num_snapshots=8),
        least_hit_rate=0.3,
        config={"step_policy": "mixed", "max_chunk_tokens": 90},
        troubles=Troubles(step_fails=0.01, overlap=0.9, num_drafts=4, lease=0.2),
    ),
    "outer_tiers": Scenario(
        prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=6),
        least_hit_rate=0.3,
        config={"max_prefill_delay_ms": 3000},
        num_blocks=24,
        num_outer=150,
        troubles=Troubles(step_fails=0.01, overlap=0.9, lease=0.1),
    ),
    "slow_disk": Scenario(
        prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=6, max_wait_s=DISK_WAIT),
        least_hit_rate=0.3,
        config={},
        num_blocks=24,
        num_outer=150,
        outer_is_slow=True,
        troubles=Troubles(step_fails=0.01, overlap=0.9, lease=0.1),
    ),
    "slow_disk_bounded": Scenario(
        prefix_cache=PrefixCacheConfig(mode="bounded", num_snapshots=2, max_wait_s=DISK_WAIT),
        least_hit_rate=0.3,
        config={"step_policy": "mixed", "max_chunk_tokens": 90},
        num_blocks=24,
        num_outer=150,
        outer_is_slow=True,
    ),
    "tiny_cache": Scenario(
        prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=3),
        least_hit_rate=0.02,
        config={"headroom_blocks": 0, "chunked_prefill": False, "max_num_batched_tokens": 700},
        num_blocks=12,
        per_step=0.15,
        troubles=Troubles(step_fails=0.01, num_drafts=4),
    ),
}


def simulation(scenario: Scenario, count: int, seed: int = SEED, *, impatience: float = 0.0) -> Simulation:
    """A run of a scenario that has not begun; ``impatience`` is the part of requests that end soon after they came."""
    rng = random.Random(seed)
    load = conversations(rng, count, per_step=scenario.per_step, longest_prompt=640, longest_output=60)
    load = [impatient(arrival, rng) if rng.random() < impatience else arrival for arrival in load]
    budgets = {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 300, **scenario.config}
    return Simulation(
        SchedulerConfig(arrivals_per_priority=50, **budgets),
        load,
        num_blocks=scenario.num_blocks,
        seed=seed,
        troubles=scenario.troubles,
        prefix_cache=scenario.prefix_cache,
        tier=outer_tier(scenario, seed),
    )


def outer_tier(scenario: Scenario, seed: int) -> LossyTier | None:
    """What a scenario has outside the device."""
    if not scenario.num_outer:
        return None
    return (SlowTier if scenario.outer_is_slow else LossyTier)(random.Random(seed), scenario.num_outer)


def impatient(arrival: Arrival, rng: random.Random) -> Arrival:
    """The same request, given up or due within the time that a slow disk takes."""
    return replace(arrival, **{rng.choice(("abort_at", "deadline")): arrival.time + rng.uniform(0, DISK_WAIT)})


def hit_rate(report: Report) -> float:
    """Tokens that were found among those of admitted sequences that may use the cache."""
    return report.prefixes.num_hit_tokens / report.prefixes.num_query_tokens


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_invariant_holds_and_prefixes_are_found(name: str) -> None:
    scenario = SCENARIOS[name]

    report = simulation(scenario, 350).run()

    print(f"\n{name}: {hit_rate(report):.3f} {report}")
    assert all(report.finished[reason] > 0 for reason in FinishReason)
    assert hit_rate(report) > scenario.least_hit_rate
    assert report.num_preemptions > 0
    assert report.num_evictions[0] > 0
    assert (report.num_evictions[1] > 0) == (scenario.prefix_cache.num_snapshots > 0)
    assert (report.prefixes.num_outer_tokens > 0) == (scenario.num_outer > 0)
    assert (report.num_overlapped > 0) == (scenario.troubles.overlap > 0)


@pytest.mark.parametrize("name", ["slow_disk", "slow_disk_bounded"])
def test_payloads_come_late_in_part_or_never_and_their_sequences_end_meanwhile(name: str) -> None:
    run = simulation(SCENARIOS[name], 350, impatience=0.4)

    report = run.run()

    tier = run._tier
    print(f"\n{name}: {report}")
    assert isinstance(tier, SlowTier)
    assert report.prefixes.num_outer_tokens > 0
    assert report.prefixes.num_late > 0
    assert tier.num_in_part > 0
    assert report.ended_on_the_way[FinishReason.ABORT] > 0
    assert report.ended_on_the_way[FinishReason.TIMEOUT] > 0
    assert report.most_overtaken > 0


def test_exact_mode_gives_the_same_tokens_with_a_slow_disk() -> None:
    cold, slow = calm("off"), calm("exact", SlowTier(random.Random(SEED), 150))

    cold.run()
    report = slow.run()

    assert slow.outputs == cold.outputs
    assert report.prefixes.num_outer_tokens > 0


def test_exact_mode_gives_the_same_tokens_for_less_work() -> None:
    cold, warm = (calm(mode) for mode in ("off", "exact"))

    reports = cold.run(), warm.run()

    assert warm.outputs == cold.outputs
    assert len(warm.outputs) > 100
    assert hit_rate(reports[1]) > 0.3
    assert num_rows(warm) < 0.7 * num_rows(cold)


def calm(mode: str, tier: LossyTier | None = None) -> Simulation:
    """A run in which nothing goes wrong, so that every sequence ends by its tokens."""
    load = conversations(random.Random(SEED), 100, per_step=0.3, longest_prompt=640, longest_output=60)
    return Simulation(
        SchedulerConfig(max_model_len=1024, max_num_seqs=16, max_num_batched_tokens=300),
        [replace(arrival, abort_at=math.inf, deadline=math.inf, fails_at=-1) for arrival in load],
        num_blocks=60,
        seed=SEED,
        troubles=Troubles(overlap=0.5),
        prefix_cache=PrefixCacheConfig(mode=mode, num_snapshots=24, max_wait_s=DISK_WAIT),
        tier=tier,
    )


def num_rows(run: Simulation) -> int:
    """Rows of all steps."""
    return run.scheduler.statistics().totals.num_tokens.total()


def test_same_seed_gives_the_same_steps() -> None:
    reports = [simulation(SCENARIOS["outer_tiers"], 50, seed=2).run() for _ in range(2)]

    assert reports[0] == reports[1]
    assert reports[0].trace != simulation(SCENARIOS["outer_tiers"], 50, seed=3).run().trace
