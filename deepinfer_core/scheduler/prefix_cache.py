"""Which prefixes the cache holds, and what a new sequence takes from them.

A block of compressed entries can be read by any sequence that begins with the same tokens. That alone does not make a
prefix: the windows and compressor rings at its end are missing (spec attention/05 B). They come from a **snapshot** of
a state slot, taken when a step ended exactly at a block boundary; or, in bounded mode, the last tokens of the hit are
computed again from an empty window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.errors import require
from deepinfer_core.prefix_cache.keys import extend
from deepinfer_core.prefix_cache.wanted import NOTHING, Choose, Wanted
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.prefix_search import NO_HIT, Hit, PrefixSearch, snapshot_key
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import SequencePlan

_MOST_REPEATS = 16
"""Look-ups for one sequence that are answered alike while there are outer tiers, which change unseen."""


class Fetch(Protocol):
    """Payloads on their way from tiers that take their time."""

    @property
    def wanted(self) -> Wanted:
        """What is on its way; nothing as long as that is not known."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all has come that will; ``get`` gives it."""
        ...

    def close(self) -> None:
        """Nobody waits for it any more, or it was used."""
        ...


class OuterTiers(Protocol):
    """Copies of blocks and snapshots outside the device; payloads are opaque. No call waits for a disk."""

    def contains(self, key: bytes) -> bool:
        """Whether :meth:`get` would probably find it."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The payload, or None; never raises."""
        ...

    def fetch(self, choose: Choose) -> Fetch | None:
        """Begin to bring what is chosen to where ``get`` finds it; None if there is nothing beyond that."""
        ...

    def delete(self, key: bytes) -> None:
        """Forget a payload, if it is there."""
        ...


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
        num_late: Times that a sequence had waited long enough for an outer tier, and began with what had come.
    """

    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_outer_tokens: int = 0
    num_snapshots: int = 0
    num_late: int = 0


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
            watched = frozenset((*keys, *map(snapshot_key, keys)))
            hit = self._search(sequence).longest(
                find_block=self._blocks.find, has_block=self._has_outside, has_snapshot=self._has_snapshot
            )
            latest = self._latest = _LookUp(sequence, sequence.num_tokens, watched, hit)
        latest.num_repeats += self._tiers is not None
        return latest.hit

    def look_again(self) -> None:
        """Forget the latest look-up, because something has come from an outer tier."""
        self._latest = None

    def fetch(self, sequence: Sequence) -> Fetch | None:
        """Ask the outer tiers to bring what a waiting sequence could use; None if they have no more to give."""
        if self._tiers is None or not self.serves(sequence):
            return None
        search = self._search(sequence)
        if self.find(sequence).resume >= search.most_tokens():
            return None
        blocks = {key: block_id for key in search.keys if (block_id := self._blocks.find(key)) is not None}
        snapshots = {key for key in map(snapshot_key, search.keys) if self.snapshots.find(key) is not None}
        return self._tiers.fetch(partial(_choose, search, blocks, snapshots))

    def distrust(self, sequence: Sequence) -> None:
        """Let nobody find what a sequence has read or written any more; for one whose results are no numbers.

        Blocks that it took from others are among that: if what they hold is the reason, the next one would fail too.
        """
        for key in self._keys(sequence) if self.serves(sequence) else ():
            for pool, name in ((self._blocks, key), (self.snapshots, snapshot_key(key))):
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
        points = [point for point in sorted({shared, last}) if point > hit.resume]
        return tuple(point for point in points if not self._has_snapshot(self._key_of_state(sequence, point)))

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
        if not entry.is_pending and self._has_snapshot(self._key_of_state(entry.sequence, end)):
            return None
        [slot] = self.snapshots.allocate(1)
        return slot

    def keep(self, entry: SequencePlan, slot: int) -> None:
        """Name a snapshot whose step has run, and let go of it."""
        end, failed = entry.start + entry.num_tokens, entry.sequence.finish_reason is FinishReason.ERROR
        if entry.holds_memory and end <= entry.sequence.num_tokens and not failed:
            key = self._key_of_state(entry.sequence, end)
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

    def _search(self, sequence: Sequence) -> PrefixSearch:
        return PrefixSearch(self._config, tuple(self._keys(sequence)), sequence.num_tokens)

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

    def _key_of_state(self, sequence: Sequence, end: int) -> bytes:
        """The key of the snapshot at a block boundary of a sequence."""
        return snapshot_key(self._keys(sequence)[end // BLOCK_TOKENS - 1])

    def _has_outside(self, key: bytes) -> bool:
        return self._tiers is not None and self._tiers.contains(key)

    def _has_snapshot(self, key: bytes) -> bool:
        return self.snapshots.find(key) is not None or self._has_outside(key)

    def _note_save(self, save: Save) -> None:
        if self._tiers is not None and not self._tiers.contains(save.key):
            self._saves.append(save)


def _choose(
    search: PrefixSearch,
    blocks: Mapping[bytes, int],
    snapshots: AbstractSet[bytes],
    contains: Callable[[bytes], bool],
    max_blocks: int,
) -> Wanted:
    """What the longest hit would take from outer tiers, of which so many blocks fit into memory.

    A thread of the tiers calls this, so it knows what the device had as a copy, and touches nothing of the scheduler.
    """
    num_asked = 0

    def has_block(key: bytes) -> bool:
        nonlocal num_asked
        num_asked += 1
        return num_asked <= max_blocks and contains(key)

    hit = search.longest(
        find_block=blocks.get, has_block=has_block, has_snapshot=lambda key: key in snapshots or contains(key)
    )
    if not hit.resume:
        return NOTHING
    return Wanted(
        blocks=tuple(key for key in search.keys[: hit.num_blocks] if key not in blocks),
        snapshot=hit.snapshot if hit.snapshot not in snapshots else None,
        num_tokens=hit.resume,
    )
