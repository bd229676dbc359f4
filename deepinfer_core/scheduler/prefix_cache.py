"""Which prefixes the cache holds, and what a new sequence takes from them.

A block of compressed entries can be read by any sequence that begins with the same tokens. That alone does not make a
prefix: the windows and compressor rings at its end are missing (spec attention/05 B). They come from a **snapshot** of
a state slot, taken when a step ended exactly at a block boundary; or, in bounded mode, the last tokens of the hit are
computed again from an empty window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.errors import require
from deepinfer_core.prefix_cache.keys import derive, extend
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import SequencePlan

_MOST_REPEATS = 16
"""Look-ups for one sequence that are answered alike while there are outer tiers, which change unseen."""


class OuterTiers(Protocol):
    """Copies of blocks and snapshots outside the device; payloads are opaque."""

    def contains(self, key: bytes) -> bool:
        """Whether :meth:`get` would probably find it."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The payload, or None; never raises."""
        ...

    def delete(self, key: bytes) -> None:
        """Forget a payload, if it is there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a sequence finds when it is admitted.

    Attributes:
        num_blocks: Leading blocks that it takes, from the device or an outer tier.
        block_ids: Those of them that are on the device, by place.
        resume: Position of the first token to compute.
        window_start: First position that will have window keys: ``resume`` when there is no snapshot, else 0.
        store_from: Entries that close before this position must not be written again.
        snapshot: Key of the snapshot to start from; None without one.
        num_found: Leading blocks that are there; more than it takes where no state was kept at their end.
    """

    num_blocks: int = 0
    block_ids: dict[int, int] = field(default_factory=dict[int, int])
    resume: int = 0
    window_start: int = 0
    store_from: int = 0
    snapshot: bytes | None = None
    num_found: int = 0


NO_HIT = Hit()


@dataclass(frozen=True, slots=True)
class Save:
    """Something that was named and may be copied to an outer tier.

    Attributes:
        key: Its key there.
        place: Block id, or snapshot slot.
        is_slot: Which of the two.
    """

    key: bytes
    place: int
    is_slot: bool


@dataclass(slots=True)
class _LookUp:
    """The latest answer of a cache, which holds until one of its keys begins or ceases to name something."""

    sequence: Sequence
    num_tokens: int
    keys: frozenset[bytes]
    hit: Hit
    num_repeats: int = 0

    def answers(self, sequence: Sequence) -> bool:
        """Whether it was about this sequence as it is now."""
        return sequence is self.sequence and sequence.num_tokens == self.num_tokens


@dataclass(slots=True)
class PrefixCounters:
    """Tokens and snapshots since the start.

    Attributes:
        num_query_tokens: Tokens of sequences that were admitted and may use the cache.
        num_hit_tokens: Those of them that were not computed again.
        num_outer_tokens: Those of the latter whose blocks came from an outer tier.
        num_snapshots: Snapshots taken.
    """

    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_outer_tokens: int = 0
    num_snapshots: int = 0


class PrefixCache:
    """Names blocks and snapshots by the tokens that they stand for, and finds them again.

    Attributes:
        snapshots: State slots that hold snapshots.
        counters: What happened.
    """

    def __init__(self, config: PrefixCacheConfig, blocks: BlockPool, *, first_snapshot: int) -> None:
        """Begin empty.

        Args:
            config: Mode and sizes.
            blocks: The pool of cache blocks.
            first_snapshot: State slot of the first snapshot; ``config.num_snapshots`` of them follow each other.
        """
        self.snapshots = BlockPool(config.num_snapshots, "snapshot", first=first_snapshot)
        self.counters = PrefixCounters()
        self._config = config
        self._blocks = blocks
        self._tiers: OuterTiers | None = None
        self._saves: list[Save] = []
        self._latest: _LookUp | None = None
        self._blocks.on_change = self.snapshots.on_change = self._note_change

    def attach(self, tiers: OuterTiers) -> None:
        """Look in outer tiers too, and tell what may be saved there."""
        self._tiers, self._latest = tiers, None

    def serves(self, sequence: Sequence) -> bool:
        """Whether a sequence takes part."""
        return self._config.is_on and bool(sequence.cache_root)

    def find(self, sequence: Sequence) -> Hit:
        """What a waiting sequence would take if it were admitted now.

        Who waits is looked up with every plan; nothing is searched again until a name changes that matters to it.
        """
        if not self.serves(sequence):
            return NO_HIT
        latest = self._latest
        if latest is None or not latest.answers(sequence) or latest.num_repeats == _MOST_REPEATS:
            keys = self._keys(sequence)
            watched = frozenset((*keys, *map(_snapshot_key, keys)))
            latest = self._latest = _LookUp(sequence, sequence.num_tokens, watched, self._search(sequence, keys))
        latest.num_repeats += self._tiers is not None
        return latest.hit

    def distrust(self, sequence: Sequence) -> None:
        """Let nobody find what a sequence has read or written any more; for one whose results are no numbers.

        Blocks that it took from others are among that: if what they hold is the reason, the next one would fail too.
        """
        for key in self._keys(sequence) if self.serves(sequence) else ():
            for pool, name in ((self._blocks, key), (self.snapshots, _snapshot_key(key))):
                pool.unname(name)
                if self._tiers is not None:
                    self._tiers.delete(name)

    def cut_points(self, sequence: Sequence, hit: Hit) -> tuple[int, ...]:
        """Positions at which prefill should stop for a moment, so that a snapshot can be taken there.

        The last block boundary of the prompt, for the same prompt with another end; and the end of the blocks that it
        shares with an earlier one, where other prompts will probably part from it too.
        """
        if not self._config.takes_snapshots or not self.serves(sequence):
            return ()
        last = (sequence.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        shared = min(hit.num_found * BLOCK_TOKENS, last)
        keys = self._keys(sequence)
        return tuple(
            point for point in sorted({shared, last}) if point > hit.resume and not self._has_snapshot(keys, point)
        )

    def use_snapshot(self, key: bytes) -> int:
        """The slot of a snapshot that is on the device; it is reused last."""
        slot = self.snapshots.find(key)
        require(slot is not None, "a snapshot was found and is gone")
        self.snapshots.touch(slot or 0)
        return slot or 0

    def count(self, sequence: Sequence, hit: Hit, num_outer_blocks: int) -> None:
        """Take note of what an admitted sequence got."""
        if self.serves(sequence):
            self.counters.num_query_tokens += sequence.num_tokens
            self.counters.num_hit_tokens += hit.resume
            self.counters.num_outer_tokens += num_outer_blocks * BLOCK_TOKENS

    def snapshot_slot(self, entry: SequencePlan) -> int | None:
        """A place for a snapshot behind the rows of an entry, if they end where one is wanted."""
        end = entry.start + entry.num_tokens
        wanted = self._config.takes_snapshots and self.serves(entry.sequence) and end % BLOCK_TOKENS == 0
        if not wanted or entry.has_drafts or not self.snapshots.num_free:
            return None
        if entry.window_start and end < entry.window_start + self._config.window_tokens:
            return None  # the window is not whole yet, and whoever starts from a snapshot reads a whole one
        if not entry.is_pending and self._has_snapshot(self._keys(entry.sequence), end):
            return None
        [slot] = self.snapshots.allocate(1)
        return slot

    def keep(self, entry: SequencePlan, slot: int) -> None:
        """Name a snapshot whose step has run, and let go of it."""
        end, failed = entry.start + entry.num_tokens, entry.sequence.finish_reason is FinishReason.ERROR
        if entry.holds_memory and end <= entry.sequence.num_tokens and not failed:
            key = _snapshot_key(self._keys(entry.sequence)[end // BLOCK_TOKENS - 1])
            if self.snapshots.name(slot, key):
                self.counters.num_snapshots += 1
                self._note_save(Save(key, slot, is_slot=True))
        self.snapshots.release([slot])

    def drop(self, slot: int) -> None:
        """Let go of a place whose step did not run."""
        self.snapshots.release([slot])

    def name_blocks(self, sequence: Sequence) -> None:
        """Name the blocks that a sequence has filled since the last call, and those that were loaded for it.

        Only up to its last token: drafts may be computed behind the one that ended it.
        """
        if not self.serves(sequence):
            return
        num_full = min(sequence.num_computed_tokens, sequence.num_tokens) // BLOCK_TOKENS
        if num_full > sequence.num_named_blocks:
            keys = self._keys(sequence)
            for place in range(sequence.num_named_blocks, num_full):
                block_id, key = sequence.block_ids[place], keys[place]
                if self._blocks.find(key) is None and self._blocks.name(block_id, key):
                    self._note_save(Save(key, block_id, is_slot=False))
            sequence.num_named_blocks = num_full

    def load(self, sequence: Sequence, hit: Hit) -> tuple[Hit, list[tuple[int, bytes]], bytes | None]:
        """Read from the outer tiers what a hit lacks on the device.

        Returns:
            The hit as far as it could be read, payloads of blocks by place, and that of the snapshot.
        """
        keys, payloads = self._keys(sequence) if hit.num_blocks else [], list[tuple[int, bytes]]()
        for place in range(hit.num_blocks if hit.resume else 0):
            if place not in hit.block_ids:
                payload = self._tiers.get(keys[place]) if self._tiers is not None else None
                if payload is None:
                    return self._broken()
                payloads.append((place, payload))
        if hit.snapshot is None or self.snapshots.find(hit.snapshot) is not None:
            return hit, payloads, None
        state = self._tiers.get(hit.snapshot) if self._tiers is not None else None
        return (hit, payloads, state) if state is not None else self._broken()

    def take_saves(self) -> list[Save]:
        """What was named since the last call, while tiers are attached, if it is still there."""
        taken, self._saves = self._saves, []
        return [save for save in taken if self._pool(save).find(save.key) == save.place]

    def _search(self, sequence: Sequence, keys: list[bytes]) -> Hit:
        found = dict[int, int]()
        num_blocks = 0
        for place, key in enumerate(keys):
            block_id = self._blocks.find(key)
            if block_id is not None:
                found[place] = block_id
            elif self._tiers is None or not self._tiers.contains(key):
                break
            num_blocks += 1
        hits = [self._exact_hit(sequence, keys, num_blocks, found), self._replayed_hit(sequence, num_blocks, found)]
        return max(hits, key=lambda hit: hit.resume)

    def _broken(self) -> tuple[Hit, list[tuple[int, bytes]], None]:
        """What :meth:`load` returns when a tier has not kept its promise."""
        self._latest = None
        return NO_HIT, [], None

    def _note_change(self, key: bytes) -> None:
        if self._latest is not None and key in self._latest.keys:
            self._latest = None

    def _pool(self, save: Save) -> BlockPool:
        return self.snapshots if save.is_slot else self._blocks

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of the full blocks of all known tokens."""
        keys, tokens = sequence.block_keys, sequence.token_ids
        for place in range(len(keys), len(tokens) // BLOCK_TOKENS):
            parent = keys[-1] if keys else sequence.cache_root
            keys.append(extend(parent, tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]))
        return keys

    def _exact_hit(self, sequence: Sequence, keys: list[bytes], num_blocks: int, found: dict[int, int]) -> Hit:
        """The longest prefix with a snapshot at its end; one token at least is left to compute."""
        if not self._config.takes_snapshots:
            return NO_HIT
        for count in range(min(num_blocks, (sequence.num_tokens - 1) // BLOCK_TOKENS), 0, -1):
            key = _snapshot_key(keys[count - 1])
            if self._has_snapshot(keys, count * BLOCK_TOKENS):
                end = count * BLOCK_TOKENS
                ids = {place: block for place, block in found.items() if place < count}
                return Hit(
                    num_blocks=count, block_ids=ids, resume=end, store_from=end, snapshot=key, num_found=num_blocks
                )
        return Hit(num_found=num_blocks)

    def _replayed_hit(self, sequence: Sequence, num_blocks: int, found: dict[int, int]) -> Hit:
        """A prefix whose last tokens are computed again from an empty window."""
        if not self._config.may_replay:
            return NO_HIT
        end = num_blocks * BLOCK_TOKENS
        kept = self._config.keep_tokens or self._config.window_tokens
        first = min(end - self._config.window_tokens, sequence.num_tokens - kept)
        resume = first // BLOCK_TOKENS * BLOCK_TOKENS
        if resume <= 0:
            return Hit(num_found=num_blocks)
        return Hit(
            num_blocks=num_blocks,
            block_ids=found,
            resume=resume,
            window_start=resume,
            store_from=end,
            num_found=num_blocks,
        )

    def _has_snapshot(self, keys: list[bytes], end: int) -> bool:
        key = _snapshot_key(keys[end // BLOCK_TOKENS - 1])
        return self.snapshots.find(key) is not None or (self._tiers is not None and self._tiers.contains(key))

    def _note_save(self, save: Save) -> None:
        if self._tiers is not None and not self._tiers.contains(save.key):
            self._saves.append(save)


@lru_cache(maxsize=8192)
def _snapshot_key(block_key: bytes) -> bytes:
    """The key of the snapshot at the end of a block."""
    return derive(block_key, "state")
