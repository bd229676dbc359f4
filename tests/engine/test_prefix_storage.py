"""What is copied to the outer tiers of the prefix cache, and what is forgotten on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from deepinfer_core.engine.prefix_storage import PrefixStorage
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tiered_store import TieredStore
from deepinfer_core.prefix_cache.wanted import Wanted
from deepinfer_core.runtime.cache_transfer import CacheTransfer
from deepinfer_core.scheduler.prefix_cache import Save
from tests.prefix_cache.slow import HeldTier, wait_until


@dataclass
class Copied:
    """A download that has arrived."""

    tensors: list[torch.Tensor]

    def wait(self) -> list[torch.Tensor]:
        return self.tensors


class Transfer:
    """Copies the number of each place."""

    block_bytes = slot_bytes = 1

    def read(self, saves: Sequence[Save]) -> Copied:
        return Copied([torch.tensor([save.place], dtype=torch.uint8) for save in saves])


def save(place: int) -> Save:
    """A block with a key of its own."""
    return Save(bytes([place]) * 16, place, is_slot=False)


def test_what_is_forgotten_while_it_is_copied_does_not_arrive() -> None:
    storage = PrefixStorage(TieredStore(MemoryTier(100)), cast(CacheTransfer, Transfer()), 100)
    kept, forgotten, there = save(1), save(2), save(3)
    storage.save([there])
    storage.save([])
    storage.save([kept, forgotten])

    for one in (forgotten, there):
        storage.delete(one.key)
    storage.save([])

    assert [storage.get(one.key) for one in (kept, forgotten, there)] == [b"\x01", None, None]
    storage.save([forgotten])  # computed again, by somebody else
    storage.save([])
    assert storage.get(forgotten.key) == b"\x02"
    storage.close()


def test_what_is_only_on_a_disk_is_not_there_until_it_was_fetched() -> None:
    held = HeldTier({save(1).key: b"\x01", save(2).key: b"\x02"})
    held.may_look.set()
    held.may_read.set()
    storage = PrefixStorage(TieredStore(MemoryTier(100), held), cast(CacheTransfer, Transfer()), 100)
    before = storage.contains(save(1).key), storage.get(save(1).key)

    fetch = storage.fetch(lambda contains, max_blocks: Wanted(blocks=(save(1).key,), num_tokens=1))
    assert fetch is not None
    wait_until(lambda: fetch.is_over)

    assert before == (False, None)
    assert held.asked == [save(1).key]
    assert [storage.contains(one.key) for one in (save(1), save(2))] == [True, False]
    assert [storage.get(one.key) for one in (save(1), save(2))] == [b"\x01", None]
    storage.close()


def test_memory_alone_has_nothing_to_fetch_from() -> None:
    storage = PrefixStorage(TieredStore(MemoryTier(100)), cast(CacheTransfer, Transfer()), 100)

    assert storage.fetch(lambda contains, max_blocks: Wanted()) is None
    storage.close()
