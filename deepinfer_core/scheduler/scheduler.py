"""Which tokens run next: the life of sequences from arrival to their one end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import RequestError, require
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler import admission
from deepinfer_core.scheduler.batching import Batcher
from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.leases import Leases
from deepinfer_core.scheduler.policy import DefaultPolicy, SchedulingPolicy
from deepinfer_core.scheduler.queues import SortedQueue, by_deadline
from deepinfer_core.scheduler.sequence import FinishReason, Sequence, SequenceStatus
from deepinfer_core.scheduler.statistics import SchedulerStatistics, Totals
from deepinfer_core.scheduler.step_plan import Outcome, SequencePlan, StepKind, StepPlan
from deepinfer_core.scheduler.stopping import record_tokens

log = get_logger(__name__)


class Scheduler:
    """Turns arrivals into steps, and what the steps yield into finished sequences.

    The cycle is ``plan``, execution by the caller, ``apply``, ``take_finished``; sequences may be added and ended at
    any point of it. Every sequence that was added comes out of ``take_finished`` exactly once. Nothing here reads a
    clock or draws a number: the same calls give the same steps. Not safe for threads: one owner makes all calls.

    Attributes:
        config: The budgets.
        leases: References of transfers to the memory of sequences, which outlive them.
    """

    def __init__(
        self, config: SchedulerConfig, *, num_blocks: int, num_state_slots: int, policy: SchedulingPolicy | None = None
    ) -> None:
        """Start empty.

        Args:
            config: Budgets.
            num_blocks: Cache blocks, the dummy not counted; their ids are 1 to ``num_blocks``.
            num_state_slots: State slots, likewise; a sequence holds one from admission to its end.
            policy: Decides the order and the kind of steps; None for :class:`DefaultPolicy`.

        Raises:
            CapacityError: There is no block or no state slot.
        """
        self.config = config
        self._policy = policy or DefaultPolicy(config)
        self._memory = CacheMemory(num_blocks, num_state_slots)
        self._batcher = Batcher(config, self._policy, self._memory)
        self._deadlines = SortedQueue(by_deadline)
        self._unfinished: dict[str, list[Sequence]] = {}
        self._finished: list[Sequence] = []
        self._planned: StepPlan | None = None
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
        """Queue a new sequence.

        Raises:
            RequestError: It could never run, or its request has an unfinished sequence of the same index.
        """
        siblings = self._unfinished.get(sequence.request_id, [])
        if any(sibling.index == sequence.index for sibling in siblings):
            raise RequestError(f"request {sequence.request_id!r} is unfinished already; choose another request id")
        self.check(sequence)
        sequence.arrival = self._num_arrivals
        sequence.max_num_tokens = min(sequence.num_tokens + sequence.max_tokens, self.max_model_len)
        sequence.rank = self._policy.rank(sequence)
        self._num_arrivals += 1
        self._unfinished[sequence.request_id] = [*siblings, sequence]
        self._deadlines.add(sequence)
        self._batcher.waiting.add(sequence)

    def check(self, sequence: Sequence) -> None:
        """Raise what :meth:`add` would raise because the sequence could never run.

        Raises:
            RequestError: Every reason, each with the value, the limit and the remedy.
        """
        admission.check(sequence, self.config, self._memory)

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

        Args:
            now: A time that never goes back; deadlines and leases end by it.

        Returns:
            The step, or None when nothing can run: all is finished, or what is left waits for a lease to end.
        """
        require(self._planned is None, "a step was planned before the one before it was applied")
        self.leases.expire(now)
        while self._deadlines and self._deadlines.first.deadline <= now:
            self.finish(self._deadlines.first, FinishReason.TIMEOUT)
        preempted: list[Sequence] = []
        for kind in self._kinds(now):
            entries = self._batcher.compose(kind, preempted)
            if entries:
                return self._begin(StepPlan(kind=kind, entries=tuple(entries), preempted=tuple(preempted)))
        require(not self._unfinished or len(self.leases) > 0, "sequences wait, but no step can hold any of them")
        return None

    def apply(self, plan: StepPlan, outcomes: Collection[Outcome]) -> None:
        """Record what a step yielded.

        Args:
            plan: The last plan.
            outcomes: One for each of ``plan.sampling_entries``, in that order.
        """
        num_expected = len(plan.sampling_entries)
        require(len(outcomes) == num_expected, f"a step yielded {len(outcomes)} outcomes for {num_expected} entries")
        rest = iter(outcomes)
        for entry in self._end(plan):
            outcome = next(rest) if entry.samples else None
            if not entry.sequence.is_finished:
                self._advance(plan.kind, entry, outcome)

    def cancel(self, plan: StepPlan) -> None:
        """Take back the last plan, whose execution failed; its sequences start over, unless the caller ended them.

        They lose their memory because the step may have overwritten part of the state that it started from.
        """
        for entry in self._end(plan):
            if not entry.sequence.is_finished:
                self._batcher.preempt(entry.sequence)

    def require_all_free(self) -> None:
        """Raise unless all memory came back; for when everything is over.

        Raises:
            InternalError: A block or slot leaked.
        """
        self._memory.require_all_free()

    def _kinds(self, now: float) -> tuple[StepKind, StepKind]:
        """Both kinds of step, the policy's choice first."""
        in_a_row = self._steps_in_a_row
        load = self._batcher.load(now, in_a_row[StepKind.PREFILL], in_a_row[StepKind.DECODE])
        prefill_first = self._policy.prefers_prefill(load)
        return (StepKind.PREFILL, StepKind.DECODE) if prefill_first else (StepKind.DECODE, StepKind.PREFILL)

    def _begin(self, plan: StepPlan) -> StepPlan:
        self._planned = plan
        for entry in plan.entries:
            entry.sequence.in_flight = True
        self._steps_in_a_row = Counter({plan.kind: self._steps_in_a_row[plan.kind] + 1})
        self._totals.count(plan)
        return plan

    def _end(self, plan: StepPlan) -> tuple[SequencePlan, ...]:
        """The step does not use memory any more: what belonged to sequences that ended meanwhile is free now."""
        require(plan is self._planned, "a step ended that was not the one planned last")
        self._planned = None
        for entry in plan.entries:
            entry.sequence.in_flight = False
            if entry.sequence.is_finished:
                self._memory.release(entry.sequence)
        return plan.entries

    def _advance(self, kind: StepKind, entry: SequencePlan, outcome: Outcome | None) -> None:
        """Count the rows whose entries are valid, and record the tokens that they yielded."""
        sequence = entry.sequence
        if outcome is None:
            sequence.num_computed_tokens += entry.num_tokens
            return
        num_new, is_decode = len(outcome.token_ids), kind is StepKind.DECODE
        fewest, most = 0 if outcome.finish_reason else 1, entry.num_tokens if is_decode else 1
        require(fewest <= num_new <= most, f"{num_new} tokens came from {entry.num_tokens} rows of a sequence")
        sequence.num_computed_tokens += num_new if is_decode else entry.num_tokens
        sequence.status = SequenceStatus.DECODING
        ending = record_tokens(sequence, outcome)
        if ending:
            self.finish(sequence, *ending)
