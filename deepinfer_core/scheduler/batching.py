"""Continuous batching: who holds memory, and which rows the next step has."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import require
from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.drafts import DraftPlanner
from deepinfer_core.scheduler.policy import Load, SchedulingPolicy
from deepinfer_core.scheduler.prefetch import Prefetches
from deepinfer_core.scheduler.prefix_cache import PrefixCache
from deepinfer_core.scheduler.prefix_search import Hit
from deepinfer_core.scheduler.queues import SortedQueue, by_rank
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from deepinfer_core.scheduler.step_plan import CacheLoad, SequencePlan, StepKind, StepPlan


class Batcher:
    """Two queues in the policy's order, and the moves between them.

    ``waiting`` sequences hold no memory; ``running`` ones were admitted and hold some. Admission takes from the front
    of the one, preemption from the back of the other: whoever comes first among the unfinished is neither overtaken
    nor preempted for another, and so gets nearer to its end. Only while payloads of a waiting one are on their way from
    a disk others are admitted past it, for a limited time.

    Attributes:
        waiting: New and preempted sequences.
        running: Prefilling and decoding sequences.
        num_preemptions: How often memory was taken away.
        prefetches: What is on its way for waiting sequences.
        num_passed_over: Sequences that the plan at hand has passed over because of that; each plan begins with 0.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        memory: CacheMemory,
        prefix_cache: PrefixCache,
        prefetches: Prefetches,
        drafts: DraftPlanner,
    ) -> None:
        self.waiting = SortedQueue(by_rank)
        self.running = SortedQueue(by_rank)
        self._config = config
        self._policy = policy
        self._memory = memory
        self._prefix_cache = prefix_cache
        self._drafts = drafts
        self.prefetches = prefetches
        self.num_preemptions = 0
        self.num_passed_over = 0

    def load(self, now: float, num_prefill_steps: int, num_decode_steps: int) -> Load:
        """What the policy may look at; the numbers of steps are those in a row."""
        num_decoding = sum(sequence.status is SequenceStatus.DECODING for sequence in self.running)
        waiting = self.waiting if self._config.max_prefill_delay_ms else ()
        return Load(
            now=now,
            num_waiting=len(self.waiting),
            num_prefilling=len(self.running) - num_decoding,
            num_decoding=num_decoding,
            num_waiting_tokens=sum(sequence.num_uncomputed_tokens for sequence in waiting),
            longest_wait_s=max((now - sequence.arrival_time for sequence in waiting), default=0.0),
            num_prefill_steps_in_a_row=num_prefill_steps,
            num_decode_steps_in_a_row=num_decode_steps,
        )

    def compose(self, kind: StepKind, now: float) -> StepPlan:
        """A step of this kind with its memory reserved; it has no entries if there is nothing to do.

        ``now`` is the time that ``Scheduler.plan`` was given.
        """
        preempted: list[Sequence] = []
        decodes = self._decode(preempted) if kind is not StepKind.PREFILL else []
        num_free_rows = self._config.max_num_batched_tokens - sum(entry.num_tokens for entry in decodes)
        loads, restores = list[CacheLoad](), list[tuple[int, int]]()
        prefills = (
            self._prefill(num_free_rows, now, loads, restores) if kind is not StepKind.DECODE and num_free_rows else []
        )
        return StepPlan(
            decodes=tuple(decodes),
            prefills=tuple(prefills),
            preempted=tuple(preempted),
            loads=tuple(loads),
            restores=tuple(restores),
        )

    def preempt(self, sequence: Sequence) -> None:
        """Take all memory from a running sequence; it waits, and computes prompt and output anew."""
        self.running.remove(sequence)
        self._memory.release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.forget_memory()
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence that is over out of its queue; memory that a step still uses stays until that step ends."""
        queue = self.waiting if sequence.status is SequenceStatus.WAITING else self.running
        queue.remove(sequence)
        self.prefetches.end(sequence)
        sequence.status = SequenceStatus.FINISHED
        if not sequence.num_steps_in_flight:
            self._memory.release(sequence)

    def _prefill(
        self, num_free_rows: int, now: float, loads: list[CacheLoad], restores: list[tuple[int, int]]
    ) -> list[SequencePlan]:
        """Chunks in the policy's order until the rows are used up; admitted sequences come before waiting ones.

        A prompt step gathers the whole context of each of its sequences, so these have a budget, too: that of one
        sequence of full length and of rows without context. The first sequence always fits.
        """
        entries: list[SequencePlan] = []
        num_free_context = self._config.max_model_len + self._config.max_num_batched_tokens
        for sequence in self._prefill_candidates(now):
            num_free_context -= sequence.num_expected_tokens
            if entries and num_free_context < 0:
                break
            is_new = sequence.status is SequenceStatus.WAITING
            if is_new and not (
                self._policy.chunk_size(sequence, num_free_rows) and self._admit(sequence, loads, restores)
            ):
                break
            chunk = self._policy.chunk_size(sequence, num_free_rows)
            most = min(sequence.num_uncomputed_tokens, num_free_rows)
            # What was just admitted needs rows: a step that fails starts over those who are in it, and no others.
            require(is_new <= chunk <= most, f"the policy gave {chunk} of at most {most} rows to {sequence!r}")
            if not chunk:
                break
            entry = _rows(sequence, _up_to_cut(sequence, chunk), is_prefill=True)
            entries.append(entry)
            num_free_rows -= entry.num_tokens
            if not num_free_rows:
                break
        return entries

    def _prefill_candidates(self, now: float) -> Iterator[Sequence]:
        """Whoever may get rows next; a waiting one is named again and again until it is admitted.

        One whose payloads are on their way is passed over; it keeps its rank.
        """
        yield from [sequence for sequence in self.running if sequence.status is SequenceStatus.PREFILLING]
        while self.num_passed_over < len(self.waiting):
            sequence = self.waiting[self.num_passed_over]
            if not self._has_place_for(sequence):
                break
            if self.prefetches.is_on_its_way(sequence, now):
                self.num_passed_over += 1
            else:
                yield sequence

    def _has_place_for(self, sequence: Sequence) -> bool:
        """The first half of the admission rule: not too many run.

        One that lost its memory to a step that follows one in flight waits for that one: it may get a token from it.
        """
        return len(self.running) < self._config.max_num_seqs and not sequence.num_steps_in_flight

    def _has_memory_for(self, sequence: Sequence, hit: Hit) -> bool:
        """The second half: a slot, its own blocks, and head-room for those who run already.

        Head-room is ``headroom_blocks`` for each admitted sequence that may still need another block; without it, the
        next decode steps would preempt what this step admits. A sequence that is alone needs none.
        """
        each = self._config.headroom_blocks
        if self._memory.can_admit(sequence, each * len(self.running), hit):
            return True
        return self._memory.can_admit(sequence, each * sum(map(self._memory.may_grow, self.running)), hit)

    def _admit(self, sequence: Sequence, loads: list[CacheLoad], restores: list[tuple[int, int]]) -> bool:
        """Give a waiting sequence its memory, and what the prefix cache has for it; False if there is not enough.

        What an outer tier promised may be gone when it is read. Then the sequence needs more memory than it seemed.
        """
        cache = self._prefix_cache
        found = cache.find(sequence)
        if not self._has_memory_for(sequence, found):
            return False
        cuts = cache.cut_points(sequence, found)
        hit, payloads, state = cache.load(sequence, found)
        if hit is not found and not self._has_memory_for(sequence, hit):
            return False
        self.waiting.remove(sequence)
        self.prefetches.end(sequence)
        self._memory.admit(sequence, hit)
        loads += [CacheLoad(sequence.block_ids[place], payload, is_slot=False) for place, payload in payloads]
        if state is not None:
            loads.append(CacheLoad(sequence.state_slot, state, is_slot=True))
        elif hit.snapshot is not None:
            restores.append((cache.use_snapshot(hit.snapshot), sequence.state_slot))
        sequence.begin_at(hit.resume, window_start=hit.window_start, store_from=hit.store_from)
        num_known = min([place for place, _ in payloads], default=hit.num_blocks)  # loaded blocks have no name yet
        sequence.num_named_blocks = num_known if hit.resume else 0
        sequence.cut_points = cuts
        cache.count(sequence, hit, len(payloads))
        sequence.status = SequenceStatus.PREFILLING
        self.running.add(sequence)
        return True

    def _decode(self, preempted: list[Sequence]) -> list[SequencePlan]:
        """A row for every decoding sequence, and as many of its drafts as the planner verifies.

        In the policy's order, so that whoever is preempted for another has no entry yet.
        """
        entries: list[SequencePlan] = []
        decoding = [sequence for sequence in self.running if _can_decode(sequence)]
        for sequence, num_drafts in zip(decoding, self._draft_lengths(decoding), strict=True):
            if sequence.status is not SequenceStatus.DECODING:
                break
            if self._make_room(sequence, sequence.num_expected_tokens + num_drafts, preempted):
                entries.append(_rows(sequence, 1 + num_drafts, is_prefill=False))
        return entries

    def _draft_lengths(self, decoding: list[Sequence]) -> list[int]:
        """How many drafts of each sequence are verified: none behind a token that is not known yet."""
        limits = [_most_drafts(sequence) for sequence in decoding]
        if not any(limits):
            return limits
        num_spare_rows = self._config.max_num_batched_tokens - len(decoding)
        lengths = [int(length) for length in self._drafts.lengths(decoding, limits, num_spare_rows)]
        fits = sum(lengths) <= num_spare_rows and all(0 <= n <= m for n, m in zip(lengths, limits, strict=True))
        require(fits, f"the planner verifies {lengths} drafts of {limits} in {num_spare_rows} rows")
        return lengths

    def _make_room(self, sequence: Sequence, num_tokens: int, preempted: list[Sequence]) -> bool:
        """Let a sequence grow, at the cost of the last in the order; False when that was itself."""
        while not self._memory.grow(sequence, num_tokens):
            victim = self.running.last
            self.preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        return True


def _can_decode(sequence: Sequence) -> bool:
    """Whether a row of its last token can run now: that is known or on its way, and not the last one of all."""
    return (
        sequence.status is SequenceStatus.DECODING
        and not sequence.has_open_drafts
        and sequence.num_remaining_tokens > 0
    )


def _most_drafts(sequence: Sequence) -> int:
    """Drafts that a step may verify: the last token of a sequence needs none."""
    if sequence.num_pending_tokens:
        return 0
    return min(len(sequence.proposal.token_ids), sequence.num_remaining_tokens - 1)


def _rows(sequence: Sequence, num_tokens: int, *, is_prefill: bool) -> SequencePlan:
    """The next rows of a sequence; those that reach its last expected token yield new ones."""
    start = sequence.num_planned_tokens
    return SequencePlan(
        sequence=sequence,
        start=start,
        num_tokens=num_tokens,
        samples=num_tokens >= sequence.num_uncomputed_tokens,
        is_prefill=is_prefill,
        is_pending=start >= sequence.num_tokens,
        life=sequence.num_preemptions,
        window_start=sequence.window_start if is_prefill else 0,
        store_from=sequence.store_from if is_prefill else 0,
        draft_token_ids=() if is_prefill else sequence.proposal.token_ids[: num_tokens - 1],
    )


def _up_to_cut(sequence: Sequence, chunk: int) -> int:
    """The chunk, or its part before the next position at which prefill should stop."""
    start = sequence.num_planned_tokens
    return next((cut - start for cut in sequence.cut_points if start < cut < start + chunk), chunk)
