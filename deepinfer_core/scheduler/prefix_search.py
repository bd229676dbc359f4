"""Which cached prefix is the longest that a sequence can begin with.

Nothing here knows where payloads are: whoever asks says how to look. So the same search is made by the scheduler, in
what can be used at once, and by a thread that looks at a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.prefix_cache.keys import derive


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
class PrefixSearch:
    """The search for one sequence as it is now.

    Attributes:
        config: Which hits are allowed.
        keys: Keys of the full blocks of all known tokens.
        num_tokens: Those tokens.
    """

    config: PrefixCacheConfig
    keys: Sequence[bytes]
    num_tokens: int

    def longest(
        self,
        *,
        find_block: Callable[[bytes], int | None],
        has_block: Callable[[bytes], bool],
        has_snapshot: Callable[[bytes], bool],
    ) -> Hit:
        """The hit that spares the most tokens.

        Args:
            find_block: The id of a block that is on the device, by its key.
            has_block: Whether a block that is not can be had from elsewhere; asked in the order of the keys, up to the
                first that is missing.
            has_snapshot: Whether the snapshot with this key can be had.
        """
        found = dict[int, int]()
        num_blocks = 0
        for place, key in enumerate(self.keys):
            block_id = find_block(key)
            if block_id is not None:
                found[place] = block_id
            elif not has_block(key):
                break
            num_blocks += 1
        hits = [self._exact_hit(num_blocks, found, has_snapshot), self._replayed_hit(num_blocks, found)]
        return max(hits, key=lambda hit: hit.resume)

    def most_tokens(self) -> int:
        """Tokens that a hit spares when every block and snapshot is there."""
        hits = [self._exact_hit(len(self.keys), {}, lambda _: True), self._replayed_hit(len(self.keys), {})]
        return max(hit.resume for hit in hits)

    def _exact_hit(self, num_blocks: int, found: dict[int, int], has_snapshot: Callable[[bytes], bool]) -> Hit:
        """The longest prefix with a snapshot at its end; one token at least is left to compute."""
        if not self.config.takes_snapshots:
            return NO_HIT
        for count in range(min(num_blocks, (self.num_tokens - 1) // BLOCK_TOKENS), 0, -1):
            key = snapshot_key(self.keys[count - 1])
            if has_snapshot(key):
                end = count * BLOCK_TOKENS
                ids = {place: block for place, block in found.items() if place < count}
                return Hit(
                    num_blocks=count, block_ids=ids, resume=end, store_from=end, snapshot=key, num_found=num_blocks
                )
        return Hit(num_found=num_blocks)

    def _replayed_hit(self, num_blocks: int, found: dict[int, int]) -> Hit:
        """A prefix whose last tokens are computed again from an empty window."""
        if not self.config.may_replay:
            return NO_HIT
        end = num_blocks * BLOCK_TOKENS
        kept = self.config.keep_tokens or self.config.window_tokens
        first = min(end - self.config.window_tokens, self.num_tokens - kept)
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


@lru_cache(maxsize=8192)
def snapshot_key(block_key: bytes) -> bytes:
    """The key of the snapshot at the end of a block."""
    return derive(block_key, "state")
