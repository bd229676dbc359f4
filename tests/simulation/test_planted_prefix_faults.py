"""A prefix cache that goes wrong must not get through the simulation: every fault here is one that it has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.prefix_cache.keys import extend
from deepinfer_core.scheduler import prefix_cache
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.prefetch import Prefetches
from deepinfer_core.scheduler.prefix_cache import PrefixCache, Save
from deepinfer_core.scheduler.prefix_search import Hit, PrefixSearch
from deepinfer_core.scheduler.sequence import Sequence as Tokens
from deepinfer_core.scheduler.step_plan import SequencePlan
from tests.simulation.simulation import Troubles
from tests.simulation.test_prefix_cache import DISK_WAIT, EXACT, Scenario, simulation

BOUNDED = PrefixCacheConfig(mode="bounded")
SLOW = PrefixCacheConfig(mode="exact", num_snapshots=6, max_wait_s=DISK_WAIT)
STARVED_AFTER = 20_000.0
"""A run without a fault is over long before."""
Patch = Callable[[pytest.MonkeyPatch], None]


def run(cache: PrefixCacheConfig, *, num_outer: int = 0, outer_is_slow: bool = False) -> None:
    """A short run; nothing fails in it but what was planted and one step in fifty."""
    troubles = Troubles(step_fails=0.02, overlap=0.9)
    simulation(
        Scenario(
            prefix_cache=cache,
            least_hit_rate=0.0,
            config={},
            num_blocks=30,
            num_outer=num_outer,
            outer_is_slow=outer_is_slow,
            troubles=troubles,
        ),
        150,
    ).run()


def name_a_block_too_early(patch: pytest.MonkeyPatch) -> None:
    """When it is planned that it will be full, not when it is."""
    name_blocks = PrefixCache.name_blocks

    def early(self: PrefixCache, sequence: Tokens) -> None:
        computed, sequence.num_computed_tokens = sequence.num_computed_tokens, sequence.num_planned_tokens + 64
        name_blocks(self, sequence)
        sequence.num_computed_tokens = computed

    patch.setattr(PrefixCache, "name_blocks", early)


def ignore_the_tokens_before_a_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefix_cache, "extend", lambda parent, tokens: extend(b"0" * 16, tokens))


def compare_half_a_block(patch: pytest.MonkeyPatch) -> None:
    """So that blocks are shared which are not full, as far as they are alike."""
    patch.setattr(prefix_cache, "extend", lambda parent, tokens: extend(parent, tokens[: BLOCK_TOKENS // 2]))


def mix_up_adapters(patch: pytest.MonkeyPatch) -> None:
    post_init = Tokens.__post_init__

    def one_root(self: Tokens, prompt_token_ids: Sequence[int]) -> None:
        post_init(self, prompt_token_ids)
        self.block_keys = [extend(b"0" * 16, self.token_ids[:BLOCK_TOKENS])] if self.num_tokens >= BLOCK_TOKENS else []

    patch.setattr(Tokens, "__post_init__", one_root)


def restore_without_looking_at_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "use_snapshot", lambda self, key: max(self.snapshots._keys))


def take_the_snapshot_one_token_late(patch: pytest.MonkeyPatch) -> None:
    snapshot_slot, keep = PrefixCache.snapshot_slot, PrefixCache.keep

    def moved(entry: SequencePlan) -> SequencePlan:
        fields = {name: getattr(entry, name) for name in SequencePlan.__slots__}
        return SequencePlan(**fields | {"start": entry.start - 1})

    patch.setattr(PrefixCache, "snapshot_slot", lambda self, entry: snapshot_slot(self, moved(entry)))
    patch.setattr(PrefixCache, "keep", lambda self, entry, slot: keep(self, moved(entry), slot))


def keep_the_snapshot_of_a_step_that_failed(patch: pytest.MonkeyPatch) -> None:
    def drop(self: PrefixCache, slot: int) -> None:
        self.snapshots.name(slot, next(reversed(self.__dict__["_asked"])))
        self.snapshots.release([slot])

    def has_snapshot(self: PrefixCache, key: bytes) -> bool:
        asked = self.__dict__.setdefault("_asked", {})
        asked[key] = None
        return has(self, key)

    has = PrefixCache._has_snapshot
    patch.setattr(PrefixCache, "_has_snapshot", has_snapshot)
    patch.setattr(PrefixCache, "drop", drop)


def begin_without_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Use the blocks of a hit as if its windows came with them."""
    find = PrefixSearch._replayed_hit

    def no_replay(self: PrefixSearch, num_blocks: int, found: dict[int, int]) -> Hit:
        hit = find(self, num_blocks, found)
        return Hit(**{name: getattr(hit, name) for name in Hit.__slots__} | {"window_start": 0})

    patch.setattr(PrefixSearch, "_replayed_hit", no_replay)


def evict_a_block_in_use(patch: pytest.MonkeyPatch) -> None:
    """When one of several lets go of it."""
    release = BlockPool.release

    def release_all(self: BlockPool, block_ids: Sequence[int]) -> None:
        release(self, block_ids)
        self._kept.update((block_id, None) for block_id in block_ids if block_id in self._keys)

    patch.setattr(BlockPool, "release", release_all)


def reuse_a_block_under_its_old_name(patch: pytest.MonkeyPatch) -> None:
    def evict(self: BlockPool) -> int:
        block_id, _ = self._kept.popitem(last=False)
        return block_id

    patch.setattr(BlockPool, "_evict", evict)


def ignore_store_from(patch: pytest.MonkeyPatch) -> None:
    begin_at = Tokens.begin_at
    patch.setattr(Tokens, "begin_at", lambda self, at, **limits: begin_at(self, at, **limits | {"store_from": 0}))


def leave_a_reference_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "drop", lambda self, slot: None)


def load_into_another_block(patch: pytest.MonkeyPatch) -> None:
    load = PrefixCache.load

    def moved(self: PrefixCache, sequence: Tokens, hit: Hit) -> Any:
        hit, payloads, state = load(self, sequence, hit)
        places = [place for place, _ in payloads]
        return hit, [(place, payload) for place, (_, payload) in zip(places[::-1], payloads, strict=True)], state

    patch.setattr(PrefixCache, "load", moved)


def save_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Tell one step late what may be copied to an outer tier, whatever became of it."""

    def late(self: PrefixCache) -> list[Save]:
        before = self.__dict__.get("_late", [])
        self.__dict__["_late"], self._saves = self._saves, []
        return list(before)

    patch.setattr(PrefixCache, "take_saves", late)


def never_let_go_of_what_was_fetched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Prefetches, "end", lambda self, sequence: None)


def wait_longer_than_allowed(patch: pytest.MonkeyPatch) -> None:
    init = Prefetches.__init__
    patch.setattr(Prefetches, "__init__", lambda self, cache, max_wait_s: init(self, cache, 2 * max_wait_s))


def begin_the_time_anew_with_every_look(patch: pytest.MonkeyPatch) -> None:
    """So that whoever waits for a disk that hangs waits for ever."""
    is_on_its_way = Prefetches.is_on_its_way

    def forgets(self: Prefetches, sequence: Tokens, now: float) -> bool:
        if sequence in self._pending:
            self._pending[sequence].since = None
        is_late = now > STARVED_AFTER
        assert not is_late, "a sequence starves"
        return is_on_its_way(self, sequence, now)

    patch.setattr(Prefetches, "is_on_its_way", forgets)


@pytest.mark.parametrize(
    "fault",
    [
        never_let_go_of_what_was_fetched,
        wait_longer_than_allowed,
        begin_the_time_anew_with_every_look,
    ],
)
def test_fault_with_a_slow_disk_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: Patch) -> None:
    fault(monkeypatch)

    with pytest.raises(AssertionError):
        run(SLOW, num_outer=150, outer_is_slow=True)


def test_with_a_slow_disk_and_without_a_fault_nothing_is_noticed() -> None:
    run(SLOW, num_outer=150, outer_is_slow=True)


@pytest.mark.parametrize(
    ("fault", "cache", "num_outer"),
    [
        (name_a_block_too_early, EXACT, 0),
        (ignore_the_tokens_before_a_block, EXACT, 0),
        (compare_half_a_block, EXACT, 0),
        (mix_up_adapters, EXACT, 0),
        (restore_without_looking_at_the_name, EXACT, 0),
        (take_the_snapshot_one_token_late, EXACT, 0),
        (keep_the_snapshot_of_a_step_that_failed, EXACT, 0),
        (begin_without_the_snapshot, BOUNDED, 0),
        (evict_a_block_in_use, EXACT, 0),
        (reuse_a_block_under_its_old_name, EXACT, 0),
        (ignore_store_from, BOUNDED, 0),
        (leave_a_reference_behind, EXACT, 0),
        (load_into_another_block, EXACT, 150),
        (save_what_is_gone, PrefixCacheConfig(mode="exact", num_snapshots=1), 150),
    ],
)
def test_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Patch, cache: PrefixCacheConfig, num_outer: int
) -> None:
    fault(monkeypatch)

    with pytest.raises(AssertionError):
        run(cache, num_outer=num_outer)


@pytest.mark.parametrize(("cache", "num_outer"), [(EXACT, 0), (BOUNDED, 0), (EXACT, 150)])
def test_without_a_fault_nothing_is_noticed(cache: PrefixCacheConfig, num_outer: int) -> None:
    run(cache, num_outer=num_outer)
