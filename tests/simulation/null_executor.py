"""Runs steps without a model, and remembers which tokens every piece of cache memory stands for."""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.prefix_cache.keys import derive, extend
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.drafts import Proposal
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import CacheLoad, Outcome, SequencePlan, StepPlan
from tests.simulation.workload import token_at

WINDOW = BLOCK_TOKENS
GARBAGE = -1
"""What a rejected draft or a failed step leaves behind."""

Slot = tuple[int, int, int]
"""Contents of a state slot: tokens that it has seen, what these were, and the first position with window keys."""
EMPTY: Slot = (0, GARBAGE, 0)


@dataclass(slots=True)
class History:
    """All tokens of a sequence as far as they were needed, those included that nobody on the host knows yet.

    Attributes:
        prefixes: At ``p``, a number that stands for all tokens before position ``p`` and for the cache root.
        key: The key of the last full block, or the root.
    """

    prefixes: list[int]
    key: bytes
    tokens: list[int] = field(default_factory=list[int])


class NullExecutor:
    """Yields the null model's tokens, if the memory that a plan points at holds what the model would have to read.

    An entry of a block stands for its token and all tokens before it, whoever wrote it; a state slot stands for all
    tokens that it has seen, and knows from where on it has window keys. Loads, restores and snapshots copy contents.
    Memory that was handed to another sequence, shared with one that begins otherwise, written out of order or not at
    all, restored from the wrong place or missing in a plan fails here, as it would give wrong tokens on a device. So
    does a write into a block that has a name, because others may read it, and two writers of a block in one step.

    Attributes:
        meaning: What a name stands for, worked out here a second time: the entries of a block, or a state slot.
    """

    def __init__(
        self, rng: random.Random, fails_at: dict[str, int], num_drafts: int, blocks: BlockPool | None = None
    ) -> None:
        """Start with empty memory.

        Args:
            rng: Decides how many drafts are proposed and accepted.
            fails_at: Request -> position whose logits are broken.
            num_drafts: Drafts per sequence and step at most.
            blocks: Knows which blocks have names.
        """
        self.meaning: dict[bytes, list[int] | Slot] = {}
        self._rng = rng
        self._fails_at = fails_at
        self._num_drafts = num_drafts
        self._pool = blocks if blocks is not None else BlockPool(0)
        self._blocks: dict[int, list[int]] = {}
        self._slots: dict[int, Slot] = {}
        self._histories: dict[Sequence, History] = {}
        self._written: dict[StepPlan, list[tuple[int, int, int]]] = {}

    def run(self, plan: StepPlan) -> Collection[Outcome]:
        """Execute a step, and what is copied before and behind it."""
        written = self._written[plan] = []
        for load in plan.loads:
            self._load(load)
        self._copy(plan.restores)
        outcomes = [outcome for entry in plan.entries if (outcome := self._run(entry, written)) is not None]
        self._copy(plan.snapshots)
        assert len({block_id for block_id, *_ in written}) == len(written)
        return outcomes

    def end(self, plan: StepPlan) -> None:
        """A step ended well."""
        del self._written[plan]

    def fail(self, plan: StepPlan) -> None:
        """A step failed, the last one that was run: nothing that it wrote is as it should be."""
        for block_id, low, high in self._written.pop(plan):
            self._blocks[block_id][low:high] = [GARBAGE] * (high - low)
        for load in plan.loads:
            if not load.is_slot:
                self._blocks[load.place] = [GARBAGE] * BLOCK_TOKENS
        slots = [entry.sequence.state_slot for entry in plan.entries if entry.holds_memory]
        for slot in [*slots, *(destination for _, destination in plan.restores + plan.snapshots)]:
            self._slots[slot] = EMPTY

    def forget(self, sequence: Sequence) -> None:
        """A sequence will not run any more."""
        self._histories.pop(sequence, None)

    def contents(self, place: int, *, is_slot: bool) -> list[int] | Slot:
        """What a block or a state slot holds."""
        return self._slots.get(place, EMPTY) if is_slot else self._blocks.get(place, [])

    def payload(self, place: int, *, is_slot: bool) -> bytes:
        """The same as a copy for an outer tier."""
        return array("q", self.contents(place, is_slot=is_slot)).tobytes()

    def _load(self, load: CacheLoad) -> None:
        values = list(array("q", load.payload))
        if load.is_slot:
            position, prefix, first = values
            self._slots[load.place] = (position, prefix, first)
        else:
            self._blocks[load.place] = values

    def _copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._slots[destination] = self._slots.get(source, EMPTY)

    def _run(self, entry: SequencePlan, written: list[tuple[int, int, int]]) -> Outcome | None:
        """Rows of one sequence; drafts that are rejected leave garbage behind the last good row."""
        sequence = entry.sequence
        num_drafts = 0 if entry.is_prefill else entry.num_tokens - 1
        num_accepted = self._rng.randint(0, num_drafts) if entry.samples else 0
        good_end = entry.start + entry.num_tokens - num_drafts + num_accepted
        prefixes = self._prefixes(sequence, good_end)
        self._read_and_write_slot(entry, prefixes, good_end)
        self._write_blocks(entry, prefixes, good_end, written)
        self._read_blocks(sequence, prefixes, good_end)
        if not entry.samples:
            return None
        proposal = self._proposal()
        fails_at = self._fails_at.get(sequence.request_id, -1)
        positions = range(good_end - num_accepted, good_end + 1)
        tokens = tuple(
            token_at(sequence.request_id, sequence.index, p) for p in positions if p < fails_at or fails_at < 0
        )
        if len(tokens) < len(positions):
            return Outcome(
                token_ids=tokens,
                finish_reason=FinishReason.ERROR,
                stop_reason="logits are not finite",
                is_distrusted=True,
            )
        return Outcome(token_ids=tokens, proposal=proposal)

    def _proposal(self) -> Proposal:
        count = self._rng.randint(0, self._num_drafts)
        return Proposal((0,) * count, tuple(self._rng.random() for _ in range(count)))

    def _read_and_write_slot(self, entry: SequencePlan, prefixes: list[int], end: int) -> None:
        """The window before the first row must be there, from where it should begin; then that before the end is."""
        start, floor = entry.start, entry.window_start
        assert floor <= start
        if start > floor:
            position, prefix, first = self._slots.get(entry.sequence.state_slot, EMPTY)
            assert (position, prefix) == (start, prefixes[start])
            assert first <= max(start + 1 - WINDOW, floor)
        else:
            first = floor
        self._slots[entry.sequence.state_slot] = (end, prefixes[end], first)

    def _write_blocks(
        self, entry: SequencePlan, prefixes: list[int], good_end: int, written: list[tuple[int, int, int]]
    ) -> None:
        """Entries of all rows from ``store_from`` on."""
        position, end = max(entry.start, entry.store_from), entry.start + entry.num_tokens
        while position < end:
            place, low = divmod(position, BLOCK_TOKENS)
            stop = min((place + 1) * BLOCK_TOKENS, end)
            values = prefixes[position + 1 : min(stop, good_end) + 1]
            block_id, high = entry.sequence.block_ids[place], low + stop - position
            assert block_id not in self._pool._keys
            block = self._blocks.setdefault(block_id, [0] * BLOCK_TOKENS)
            block[low:high] = values + [GARBAGE] * (high - low - len(values))
            written.append((block_id, low, high))
            position = stop

    def _read_blocks(self, sequence: Sequence, prefixes: list[int], end: int) -> None:
        """Rows read the entries of all positions up to their own."""
        for place in range(-(-end // BLOCK_TOKENS)):
            expected = prefixes[place * BLOCK_TOKENS + 1 : min((place + 1) * BLOCK_TOKENS, end) + 1]
            assert self._blocks.get(sequence.block_ids[place], [])[: len(expected)] == expected

    def _prefixes(self, sequence: Sequence, end: int) -> list[int]:
        """What stands for the tokens before each position up to ``end``."""
        history = self._histories.get(sequence)
        if history is None:
            history = self._histories[sequence] = History([crc32(sequence.cache_root)], sequence.cache_root)
        prefixes = history.prefixes
        for position in range(len(prefixes) - 1, end):
            is_known = position < sequence.num_tokens
            token = (
                sequence.token_ids[position] if is_known else token_at(sequence.request_id, sequence.index, position)
            )
            prefixes.append(hash((prefixes[-1], token)))
            history.tokens.append(token)
            if sequence.cache_root and not (position + 1) % BLOCK_TOKENS:
                history.key = extend(history.key, history.tokens[-BLOCK_TOKENS:])
                self.meaning[history.key] = prefixes[-BLOCK_TOKENS:]
                self.meaning[derive(history.key, "state")] = (position + 1, prefixes[-1], 0)
        return prefixes
