"""Continuous batching: who holds memory, and which rows the next step has."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import require
from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.policy import Load, SchedulingPolicy
from deepinfer_core.scheduler.queues import SortedQueue, by_rank
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from deepinfer_core.scheduler.step_plan import SequencePlan, StepKind


class Batcher:
    """Two queues in the policy's order, and the moves between them.

    ``waiting`` sequences hold no memory; ``running`` ones were admitted and hold some. Admission takes from the front
    of the one, preemption from the back of the other: whoever comes first among the unfinished is neither overtaken
    nor preempted for another, and so gets nearer to its end.

    Attributes:
        waiting: New and preempted sequences.
        running: Prefilling and decoding sequences.
        num_preemptions: How often memory was taken away.
    """

    def __init__(self, config: SchedulerConfig, policy: SchedulingPolicy, memory: CacheMemory) -> None:
        self.waiting = SortedQueue(by_rank)
        self.running = SortedQueue(by_rank)
        self._config = config
        self._policy = policy
        self._memory = memory
        self.num_preemptions = 0

    def load(self, now: float, num_prefill_steps: int, num_decode_steps: int) -> Load:
        """What the policy may look at; the numbers of steps are those in a row."""
        num_decoding = sum(sequence.status is SequenceStatus.DECODING for sequence in self.running)
        return Load(
            now=now,
            num_waiting=len(self.waiting),
            num_prefilling=len(self.running) - num_decoding,
            num_decoding=num_decoding,
            num_prefill_steps_in_a_row=num_prefill_steps,
            num_decode_steps_in_a_row=num_decode_steps,
        )

    def compose(self, kind: StepKind, preempted: list[Sequence]) -> list[SequencePlan]:
        """The entries of a step of this kind, with their memory reserved; none if there is nothing to do.

        Args:
            kind: Which kind.
            preempted: Gets the sequences that had to give up their memory.
        """
        return self._prefill() if kind is StepKind.PREFILL else self._decode(preempted)

    def preempt(self, sequence: Sequence) -> None:
        """Take all memory from a running sequence; it waits, and computes prompt and output anew."""
        self.running.remove(sequence)
        self._memory.release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence that is over out of its queue; memory that a step still uses stays until that step ends."""
        queue = self.waiting if sequence.status is SequenceStatus.WAITING else self.running
        queue.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        if not sequence.in_flight:
            self._memory.release(sequence)

    def _prefill(self) -> list[SequencePlan]:
        """Chunks in the policy's order until the rows are used up; admitted sequences come before waiting ones."""
        entries: list[SequencePlan] = []
        num_free_rows = self._config.max_num_batched_tokens
        for sequence in self._prefill_candidates():
            chunk = self._policy.chunk_size(sequence, num_free_rows)
            most = min(sequence.num_uncomputed_tokens, num_free_rows)
            require(0 <= chunk <= most, f"the policy gave {chunk} of at most {most} rows to {sequence!r}")
            if not chunk:
                break
            if sequence.status is SequenceStatus.WAITING:
                self._admit(sequence)
            entries.append(_rows(sequence, chunk))
            num_free_rows -= chunk
            if not num_free_rows:
                break
        return entries

    def _prefill_candidates(self) -> Iterator[Sequence]:
        """Whoever may get rows next; a waiting one is named again and again until it is admitted."""
        yield from [sequence for sequence in self.running if sequence.status is SequenceStatus.PREFILLING]
        while self.waiting and self._may_admit(self.waiting.first):
            yield self.waiting.first

    def _may_admit(self, sequence: Sequence) -> bool:
        """The admission rule: a place, a slot, its own blocks, and head-room for those who run already.

        Head-room is ``headroom_blocks`` for each admitted sequence that may still need another block; without it, the
        next decode steps would preempt what this step admits. A sequence that is alone needs none.
        """
        if len(self.running) >= self._config.max_num_seqs:
            return False
        each = self._config.headroom_blocks
        if self._memory.can_admit(sequence, each * len(self.running)):
            return True
        return self._memory.can_admit(sequence, each * sum(map(self._memory.may_grow, self.running)))

    def _admit(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self._memory.admit(sequence)
        sequence.status = SequenceStatus.PREFILLING
        self.running.add(sequence)

    def _decode(self, preempted: list[Sequence]) -> list[SequencePlan]:
        """A row for every decoding sequence, and its drafts as far as the step has rows for them.

        In the policy's order, so that whoever is preempted for another has no entry yet.
        """
        entries: list[SequencePlan] = []
        decoding = [sequence for sequence in self.running if sequence.status is SequenceStatus.DECODING]
        num_spare_rows = self._config.max_num_batched_tokens - len(decoding)
        for sequence in decoding:
            if sequence.status is not SequenceStatus.DECODING:
                break
            num_drafts = sequence.num_draft_tokens
            if num_drafts:
                num_drafts = min(num_drafts, num_spare_rows, sequence.num_remaining_tokens - 1)
            if self._make_room(sequence, sequence.num_tokens + num_drafts, preempted):
                entries.append(_rows(sequence, 1 + num_drafts))
                num_spare_rows -= num_drafts
        return entries

    def _make_room(self, sequence: Sequence, num_tokens: int, preempted: list[Sequence]) -> bool:
        """Let a sequence grow, at the cost of the last in the order; False when that was itself."""
        while not self._memory.grow(sequence, num_tokens):
            victim = self.running.last
            self.preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        return True


def _rows(sequence: Sequence, num_tokens: int) -> SequencePlan:
    """The next rows of a sequence; those that reach its last known token yield new ones."""
    return SequencePlan(
        sequence=sequence,
        start=sequence.num_computed_tokens,
        num_tokens=num_tokens,
        samples=num_tokens >= sequence.num_uncomputed_tokens,
    )
