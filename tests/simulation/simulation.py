"""An engine without a model: requests arrive, steps run, sequences end, and everything is checked all the time."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import RequestError
from deepinfer_core.scheduler.leases import Lease
from deepinfer_core.scheduler.policy import SchedulingPolicy
from deepinfer_core.scheduler.prefix_cache import PrefixCounters
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import Outcome, StepPlan
from tests.simulation.invariants import check_in_flight, check_names, check_plan, check_prefetches, check_state
from tests.simulation.lossy_tier import LossyTier
from tests.simulation.null_executor import NullExecutor
from tests.simulation.slow_tier import SlowTier
from tests.simulation.workload import Arrival

LEASE_TIME = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """What goes wrong, as chances per step.

    Attributes:
        step_fails: The execution of a step fails.
        lease: A transfer of a running sequence starts; half of them are acknowledged, the others run out of time.
        num_drafts: Drafts per sequence and step at most.
        overlap: Chance that a step is planned and run before the one before it is applied.
    """

    step_fails: float = 0.0
    lease: float = 0.0
    num_drafts: int = 0
    overlap: float = 0.0


@dataclass(slots=True)
class Report:
    """What a simulation saw.

    Attributes:
        num_steps: Steps that ran.
        num_overlapped: Steps that were planned while another was in flight.
        num_refused: Requests that could never run.
        num_preemptions: Memory taken away.
        finished: Sequences by finish reason.
        longest_at_front: Steps that one sequence was the first in the waiting queue without a break.
        most_overtaken: Later arrivals that were first admitted before one sequence was.
        trace: What ran, step by step, as a number.
        prefixes: What the prefix cache counted.
        num_evictions: Names that were lost to other contents, of blocks and of snapshots.
        num_naps: Plans without a step while payloads were on their way and nothing ran.
        ended_on_the_way: Sequences that ended while their payloads were on their way, by finish reason.
    """

    num_steps: int = 0
    num_overlapped: int = 0
    num_refused: int = 0
    num_preemptions: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter[FinishReason])
    longest_at_front: int = 0
    most_overtaken: int = 0
    trace: int = 0
    prefixes: PrefixCounters = field(default_factory=PrefixCounters)
    num_evictions: tuple[int, int] = (0, 0)
    num_naps: int = 0
    ended_on_the_way: Counter[FinishReason] = field(default_factory=Counter[FinishReason])


class Simulation:
    """One run; ``run`` returns when every request has ended and all memory is back."""

    def __init__(
        self,
        config: SchedulerConfig,
        arrivals: list[Arrival],
        *,
        num_blocks: int,
        seed: int,
        troubles: Troubles,
        policy: SchedulingPolicy | None = None,
        prefix_cache: PrefixCacheConfig | None = None,
        tier: LossyTier | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            config: Budgets.
            arrivals: The workload.
            num_blocks: Size of the cache.
            seed: Of everything that is random but the workload.
            troubles: What goes wrong.
            policy: Another one than the budgets name.
            prefix_cache: None for none.
            tier: An outer tier of the prefix cache.
        """
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(
            config,
            num_blocks=num_blocks,
            num_state_slots=config.max_num_seqs * 6 // 5,
            policy=policy,
            prefix_cache=prefix_cache,
        )
        self.report = Report()
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self._tier = tier
        if tier is not None:
            self.scheduler.prefix_cache.attach(tier)
        self._arrivals = {arrival.request_id: arrival for arrival in arrivals}
        self._coming = list(reversed(arrivals))
        self._aborts: list[tuple[float, str]] = []
        self._troubles = troubles
        fails_at = {arrival.request_id: arrival.fails_at for arrival in arrivals if arrival.fails_at >= 0}
        self._executor = NullExecutor(self.rng, fails_at, troubles.num_drafts, self.scheduler._memory.blocks)
        self._accepted: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()
        self._in_flight: deque[tuple[StepPlan, Collection[Outcome]]] = deque()
        self._leases: list[Lease] = []
        self._front: tuple[Sequence | None, int] = (None, 0)
        self._never_admitted: dict[int, Sequence] = {}
        self._overtaken: Counter[int] = Counter()
        self._now = 0.0
        self._once_named: set[int] = set()
        self._on_the_way: set[Sequence] = set()

    def run(self) -> Report:
        """Play the whole workload."""
        while self._coming or self.scheduler.has_unfinished or self._in_flight:
            self._now += 1.0
            if self._tier is not None:
                self._tier.pass_time(self._now)
            self._arrive()
            self._abort()
            if not self._step():
                self._check_state()
            self._collect()
            self._watch_front()
        self.scheduler.plan(math.inf)
        self.scheduler.require_all_free()
        assert self._ended == self._accepted
        assert not len(self.scheduler._batcher.prefetches)
        assert not isinstance(self._tier, SlowTier) or not self._tier.open
        cache, blocks = self.scheduler.prefix_cache, self.scheduler._memory.blocks
        self.report.num_preemptions = self.scheduler.statistics().num_preemptions
        self.report.prefixes = cache.counters
        self.report.num_evictions = blocks.num_evictions, cache.snapshots.num_evictions
        return self.report

    def _arrive(self) -> None:
        while self._coming and self._coming[-1].time <= self._now:
            arrival = self._coming.pop()
            for sequence in arrival.sequences():
                try:
                    self.scheduler.add(sequence)
                except RequestError:
                    self.report.num_refused += 1
                    continue
                self._accepted.add((sequence.request_id, sequence.index))
                self._never_admitted[sequence.arrival] = sequence
            heapq.heappush(self._aborts, (arrival.abort_at, arrival.request_id))

    def _abort(self) -> None:
        while self._aborts and self._aborts[0][0] <= self._now:
            self.scheduler.abort(heapq.heappop(self._aborts)[1])

    def _step(self) -> bool:
        """Plan and run a step; apply the one before it, and now and then this one too; False if none was applied."""
        plan = self.scheduler.plan(self._now)
        self._watch_passed_over(plan)
        if plan is not None:
            check_plan(plan, self.scheduler)
            self._note(plan)
            self.report.num_overlapped += len(self._in_flight)
            self._in_flight.append((plan, self._executor.run(plan)))
            self._now += 0.5
            self._abort()
        overlaps = plan is not None and self.rng.random() < self._troubles.overlap
        num_ends = len(self._in_flight) - overlaps
        while len(self._in_flight) > overlaps:
            self._end_step()
        if plan is not None:
            self._transfer(plan)
        return num_ends > 0

    def _end_step(self) -> None:
        """Apply the oldest step in flight, or fail it together with what builds on it."""
        for plan, _ in self._in_flight:
            check_in_flight(plan, self.scheduler)
        plan, outcomes = self._in_flight.popleft()
        gone = [(e.sequence, e.sequence.num_tokens) for e in plan.entries if e.sequence.is_finished]
        if self.rng.random() < self._troubles.step_fails:
            while self._in_flight:
                self._cancel(self._in_flight.pop()[0])
            self._cancel(plan)
        else:
            self._executor.end(plan)
            self.scheduler.apply(plan, outcomes)
        self._check_state()
        check_names(self.scheduler, self._executor)
        self._save()
        assert all(sequence.num_tokens == num_tokens for sequence, num_tokens in gone)

    def _cancel(self, plan: StepPlan) -> None:
        self._executor.fail(plan)
        self.scheduler.cancel(plan)

    def _save(self) -> None:
        """Copy what was named to the outer tier."""
        saves = self.scheduler.prefix_cache.take_saves()
        assert self._tier is not None or not saves
        for save in saves if self._tier is not None else ():
            self._tier.put(save.key, self._executor.payload(save.place, is_slot=save.is_slot))

    def _transfer(self, plan: StepPlan) -> None:
        """Start a transfer now and then; it is acknowledged early, late or never."""
        sequence = self.rng.choice(plan.entries).sequence
        if self.rng.random() < self._troubles.lease and sequence.block_ids:
            self._leases.append(self.scheduler.leases.grant(sequence, self._now + LEASE_TIME))
        if self._leases and self.rng.random() < self._troubles.lease / 2:
            lease = self._leases.pop(self.rng.randrange(len(self._leases)))
            assert self.scheduler.leases.end(lease) or lease.expires_at <= self._now

    def _check_state(self) -> None:
        """The invariants; a block may be shared without a name only if it had one while it was in use."""
        blocks = self.scheduler._memory.blocks
        self._once_named = {b for b in self._once_named | set(blocks._keys) if blocks.num_references(b)}
        check_state(self.scheduler, self._once_named)

    def _collect(self) -> None:
        for sequence in self.scheduler.take_finished():
            key = (sequence.request_id, sequence.index)
            assert key not in self._ended
            self._ended.add(key)
            self._never_admitted.pop(sequence.arrival, None)
            self._arrivals[sequence.request_id].check(sequence, self.scheduler.max_model_len)
            self._executor.forget(sequence)
            self.outputs[key] = sequence.output_token_ids
            assert sequence.finish_reason is not None
            self.report.finished[sequence.finish_reason] += 1
            self.report.ended_on_the_way[sequence.finish_reason] += sequence in self._on_the_way

    def _note(self, plan: StepPlan) -> None:
        """Remember what ran, and whom new admissions overtook."""
        self.report.num_steps += 1
        rows = tuple((entry.sequence.arrival, entry.start, entry.num_tokens) for entry in plan.entries)
        self.report.trace = hash((self.report.trace, rows))
        admitted = [entry.sequence.arrival for entry in plan.entries if entry.sequence.arrival in self._never_admitted]
        for arrival in admitted:
            del self._never_admitted[arrival]
        for arrival in admitted:
            for earlier in self._never_admitted:
                if earlier > arrival:
                    break
                self._overtaken[earlier] += 1
                self.report.most_overtaken = max(self.report.most_overtaken, self._overtaken[earlier])

    def _watch_passed_over(self, plan: StepPlan | None) -> None:
        """Who waits for payloads now."""
        batcher = self.scheduler._batcher
        check_prefetches(self.scheduler, self._now)
        self._on_the_way.update(list(batcher.waiting)[: batcher.num_passed_over])
        self._on_the_way.difference_update(entry.sequence for entry in (plan.entries if plan is not None else ()))
        self.report.num_naps += plan is None and batcher.num_passed_over > 0 and not self._in_flight

    def _watch_front(self) -> None:
        waiting = self.scheduler._batcher.waiting
        front = waiting.first if waiting else None
        num_steps = self._front[1] + 1 if front is not None and front is self._front[0] else 0
        self._front = (front, num_steps)
        self.report.longest_at_front = max(self.report.longest_at_front, num_steps)
