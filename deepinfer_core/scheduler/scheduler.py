"""Which tokens run next: the life of sequences from arrival to their one end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import replace

from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import RequestError, require
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler import admission
from deepinfer_core.scheduler.batching import Batcher
from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.drafts import DraftPlanner, StepTiming, VerifyAll
from deepinfer_core.scheduler.leases import Leases
from deepinfer_core.scheduler.policy import POLICIES, SchedulingPolicy
from deepinfer_core.scheduler.prefetch import Prefetches
from deepinfer_core.scheduler.prefix_cache import PrefixCache
from deepinfer_core.scheduler.queues import SortedQueue, by_deadline
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.statistics import SchedulerStatistics, Totals
from deepinfer_core.scheduler.step_plan import Outcome, SequencePlan, StepKind, StepPlan
from deepinfer_core.scheduler.stopping import record_tokens

log = get_logger(__name__)

MAX_STEPS_IN_FLIGHT = 2
"""One that runs, and one that is queued behind it."""

_ALTERNATIVES = {
    StepKind.PREFILL: (StepKind.PREFILL, StepKind.DECODE),
    StepKind.DECODE: (StepKind.DECODE, StepKind.PREFILL),
    StepKind.MIXED: (StepKind.MIXED,),
}
"""What is tried when the policy wants a kind of step, in this order."""


class Scheduler:
    """Turns arrivals into steps, and what the steps yield into finished sequences.

    The cycle is ``plan``, execution by the caller, ``apply``, ``take_finished``; sequences may be added and ended at
    any point of it. A step may be planned while one other is in flight, that is, not applied yet; a caller who does so
    must run steps in the order of their plans. Every sequence that was added comes out of ``take_finished`` exactly
    once. Nothing here reads a clock or draws a number: the same calls give the same steps. Not safe for threads: one
    owner makes all calls.

    Attributes:
        config: The budgets.
        leases: References of transfers to the memory of sequences, which outlive them.
        prefix_cache: What prompts can reuse.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        num_state_slots: int,
        policy: SchedulingPolicy | None = None,
        prefix_cache: PrefixCacheConfig | None = None,
        drafts: DraftPlanner | None = None,
    ) -> None:
        """Start empty.

        Args:
            config: Budgets.
            num_blocks: Cache blocks, the dummy not counted; their ids are 1 to ``num_blocks``.
            num_state_slots: State slots, likewise; a sequence holds one from admission to its end.
            policy: Decides the order and the kind of steps; None for the one that the budgets name.
            prefix_cache: Whether prompts reuse what others left; None for not. State slots of its snapshots follow
                those of sequences.
            drafts: Decides how many drafts are verified and whether new ones are made; None: all that are there, and
                none are made.

        Raises:
            CapacityError: There is no block or no state slot.
        """
        self.config = config
        self._policy = policy or POLICIES[config.step_policy](config)
        self._memory = CacheMemory(num_blocks, num_state_slots)
        prefixes = prefix_cache or PrefixCacheConfig()
        self.prefix_cache = PrefixCache(prefixes, self._memory.blocks, first_snapshot=num_state_slots + 1)
        prefetches = Prefetches(self.prefix_cache, prefixes.max_wait_s)
        self._drafts = drafts or VerifyAll(proposes=False)
        self._last_proposed: bool | None = None
        self._batcher = Batcher(config, self._policy, self._memory, self.prefix_cache, prefetches, self._drafts)
        self._deadlines = SortedQueue(by_deadline)
        self._unfinished: dict[str, list[Sequence]] = {}
        self._finished: list[Sequence] = []
        self._in_flight: deque[StepPlan] = deque()
        self._taking: dict[StepPlan, list[tuple[SequencePlan, int]]] = {}
        self._steps_in_a_row: Counter[StepKind] = Counter()
        self._num_arrivals = 0
        self._totals = Totals()
        self.leases = Leases(self._memory)
        if self.max_model_len < config.max_model_len:
            log.warning(
                "the cache holds %d tokens; no sequence can become longer, though max_model_len=%d permits it",
                self.max_model_len,
                config.max_model_len,
            )

    @property
    def max_model_len(self) -> int:
        """Tokens of one sequence at most: as configured, or what the whole cache holds if that is less."""
        return min(self.config.max_model_len, self._memory.num_tokens)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._unfinished)

    @property
    def is_full(self) -> bool:
        """True when as many sequences wait as may; more are refused."""
        return 0 < self.config.max_num_waiting <= len(self._batcher.waiting)

    def statistics(self) -> SchedulerStatistics:
        """A snapshot that later steps do not change."""
        return SchedulerStatistics(
            num_waiting=len(self._batcher.waiting),
            num_running=len(self._batcher.running),
            num_queued_tokens=sum(sequence.num_tokens for sequence in self._batcher.waiting),
            num_free_blocks=self._memory.blocks.num_free,
            num_free_state_slots=self._memory.slots.num_free,
            num_leases=len(self.leases),
            num_preemptions=self._batcher.num_preemptions,
            totals=self._totals.copy(),
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. When the first of a request found a place in the queue, the others find one too.

        What the prefix cache has of it on a disk begins to be read.

        Raises:
            RequestError: It could never run, its request has an unfinished sequence of the same index, or the queue is
                full.
        """
        siblings = self._unfinished.get(sequence.request_id, [])
        if any(sibling.index == sequence.index for sibling in siblings):
            raise RequestError(f"request {sequence.request_id!r} is unfinished already; choose another request id")
        num_waiting = 0 if siblings else len(self._batcher.waiting)
        admission.check(sequence, self.config, self._memory, num_waiting=num_waiting)
        sequence.arrival = self._num_arrivals
        sequence.max_num_tokens = min(sequence.num_tokens + sequence.max_tokens, self.max_model_len)
        sequence.rank = self._policy.rank(sequence)
        self._num_arrivals += 1
        self._unfinished[sequence.request_id] = [*siblings, sequence]
        self._deadlines.add(sequence)
        self._batcher.waiting.add(sequence)
        self._batcher.prefetches.begin(sequence)

    def check(self, sequence: Sequence) -> None:
        """Raise what :meth:`add` would raise for the first sequence of a new request.

        Raises:
            RequestError: Every reason, each with the value, the limit and the remedy.
        """
        admission.check(sequence, self.config, self._memory, num_waiting=len(self._batcher.waiting))

    def abort(self, request_id: str) -> int:
        """End all sequences of a request; returns how many that were, 0 when it is unknown or over already."""
        sequences = self._unfinished.get(request_id, [])
        for sequence in sequences:
            self.finish(sequence, FinishReason.ABORT)
        return len(sequences)

    def finish(self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None) -> bool:
        """End a sequence now; its output so far is its output.

        Returns:
            False when it had ended before; then the first reason stands.
        """
        if sequence.is_finished:
            return False
        self._deadlines.remove(sequence)
        siblings = [s for s in self._unfinished.pop(sequence.request_id) if s is not sequence]
        if siblings:
            self._unfinished[sequence.request_id] = siblings
        self._batcher.discard(sequence)
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        self._finished.append(sequence)
        self._totals.num_finished[reason] += 1
        return True

    def take_finished(self) -> list[Sequence]:
        """The sequences that ended since the last call, in the order in which they did."""
        taken, self._finished = self._finished, []
        return taken

    def plan(self, now: float) -> StepPlan | None:
        """Choose the rows of the next step and reserve their memory; ``apply`` or ``cancel`` must follow.

        Rows of sequences that are in a step in flight are those that follow it, as if it had ended no sequence.

        Args:
            now: A time that never goes back; deadlines, leases and the wait for a disk end by it.

        Returns:
            The step, or None when nothing can run: all is finished, or what is left waits for a lease, for a step in
            flight to end, or for payloads of the prefix cache.
        """
        require(len(self._in_flight) < MAX_STEPS_IN_FLIGHT, "a step was planned before the ones before it were applied")
        self.leases.expire(now)
        while self._deadlines and self._deadlines.first.deadline <= now:
            self.finish(self._deadlines.first, FinishReason.TIMEOUT)
        preempted: tuple[Sequence, ...] = ()
        self._batcher.num_passed_over = 0
        for kind in self._kinds(now):
            plan = self._batcher.compose(kind, now)
            preempted += plan.preempted
            if plan.entries:
                return self._begin(replace(plan, preempted=preempted))
        outsiders = len(self.leases) + len(self._in_flight) + self._batcher.num_passed_over
        require(not self._unfinished or outsiders > 0, "sequences wait, but no step can hold any of them")
        return None

    def apply(self, plan: StepPlan, outcomes: Collection[Outcome]) -> None:
        """Record what the oldest step in flight yielded.

        Tokens of a sequence that lost its memory since are kept: the step ran before the memory was used again.

        Args:
            plan: That step.
            outcomes: One for each of ``plan.sampling_entries``, in that order.
        """
        num_expected = len(plan.sampling_entries)
        require(len(outcomes) == num_expected, f"a step yielded {len(outcomes)} outcomes for {num_expected} entries")
        require(bool(self._in_flight) and plan is self._in_flight[0], "a step ended before the one before it")
        rest = iter(outcomes)
        for entry in plan.entries:
            outcome = next(rest) if entry.samples else None
            if not entry.sequence.is_finished:
                self._advance(entry, outcome)
        for entry, slot in self._taking.pop(plan):
            self.prefix_cache.keep(entry, slot)
        self._end(plan)

    def reflect(self) -> None:
        """Let the planner of drafts prepare its next decision; for whoever has to wait for the device anyway."""
        self._drafts.reflect()

    def observe(self, timing: StepTiming) -> None:
        """Tell the planner of drafts what a decode step took."""
        self._drafts.observe(timing)

    def cancel(self, plan: StepPlan) -> None:
        """Take back a step in flight whose execution failed; its sequences start over, unless the caller ended them.

        They lose their memory because the step may have overwritten part of the state that it started from. Where a
        later step is in flight, it has read that state: then the caller must have ended them all, or cancels the later
        one first.
        """
        require(plan in self._in_flight, "a step was cancelled that is not in flight")
        is_last = plan is self._in_flight[-1]
        for _, slot in self._taking.pop(plan):
            self.prefix_cache.drop(slot)
        self._end(plan)
        for entry in plan.entries:
            if entry.sequence.is_finished or not entry.holds_memory:
                continue
            require(is_last, f"a step failed that a later one with {entry.sequence!r} builds on")
            self._batcher.preempt(entry.sequence)

    def cancel_all(self) -> None:
        """Take back every step in flight."""
        while self._in_flight:
            self.cancel(self._in_flight[-1])

    def require_all_free(self) -> None:
        """Raise unless all memory came back; for when everything is over.

        Raises:
            InternalError: A block or slot leaked.
        """
        self._memory.require_all_free()
        self.prefix_cache.snapshots.require_all_free()

    def _kinds(self, now: float) -> tuple[StepKind, ...]:
        """The kinds of step to try, the policy's choice first."""
        in_a_row = self._steps_in_a_row
        load = self._batcher.load(now, in_a_row[StepKind.PREFILL], in_a_row[StepKind.DECODE])
        return _ALTERNATIVES[self._policy.kind(load)]

    def _begin(self, plan: StepPlan) -> StepPlan:
        wanted = ((entry, self.prefix_cache.snapshot_slot(entry)) for entry in plan.entries)
        places = [(entry, slot) for entry, slot in wanted if slot is not None]
        plan = replace(
            plan,
            snapshots=tuple((entry.sequence.state_slot, slot) for entry, slot in places),
            proposes=self._proposes(plan),
        )
        self._in_flight.append(plan)
        self._taking[plan] = places
        for entry in plan.entries:
            entry.sequence.begin_step(entry.num_tokens, samples=entry.samples)
        self._steps_in_a_row = Counter({plan.kind: self._steps_in_a_row[plan.kind] + 1})
        self._totals.count(plan)
        return plan

    def _proposes(self, plan: StepPlan) -> bool:
        """Whether drafts are made behind a step: decode steps are asked about, others follow the last of them."""
        num_sampling = len(plan.sampling_entries)
        if not num_sampling:
            return False
        if plan.decodes or self._last_proposed is None:
            self._last_proposed = self._drafts.proposes(num_sampling)
        return self._last_proposed

    def _end(self, plan: StepPlan) -> None:
        """The step does not use memory any more: what belonged to sequences that ended meanwhile may be free now."""
        self._in_flight.remove(plan)
        for entry in plan.entries:
            sequence = entry.sequence
            sequence.num_steps_in_flight -= 1
            if sequence.is_finished and not sequence.num_steps_in_flight:
                self._memory.release(sequence)

    def _advance(self, entry: SequencePlan, outcome: Outcome | None) -> None:
        """Count the rows whose entries are valid, and record the tokens that they yielded."""
        sequence = entry.sequence
        num_new = 0 if outcome is None else len(outcome.token_ids)
        if outcome is not None:
            fewest, most = 0 if outcome.finish_reason else 1, 1 if entry.is_prefill else entry.num_tokens
            require(fewest <= num_new <= most, f"{num_new} tokens came from {entry.num_tokens} rows of a sequence")
        if entry.holds_memory:
            sequence.end_step(entry.num_tokens, num_new, samples=entry.samples)
        ending = record_tokens(sequence, outcome) if outcome is not None else None
        failed = ending is not None and ending[0] is FinishReason.ERROR
        if outcome is not None and outcome.is_distrusted:
            self.prefix_cache.distrust(sequence)
        elif entry.holds_memory and not failed:  # the names of accepted drafts need their tokens
            self.prefix_cache.name_blocks(sequence)
        if ending:
            self.finish(sequence, *ending)
        elif outcome is not None and entry.holds_memory:
            sequence.take_proposal(outcome.proposal)
