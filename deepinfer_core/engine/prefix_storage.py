"""The prefix cache of an engine outside the device: what is copied there, and where it is found again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.prefix_cache.disk_tier import DiskTier
from deepinfer_core.prefix_cache.fetch import Fetch, Fetcher
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tiered_store import TieredStore

if TYPE_CHECKING:
    from deepinfer_core.backend.device import Download
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.prefix_cache.keys import CacheIdentity
    from deepinfer_core.prefix_cache.wanted import Choose
    from deepinfer_core.runtime.cache_transfer import CacheTransfer
    from deepinfer_core.scheduler.prefix_cache import Save

_GIB = 2**30
_CLOSE_S = 30.0
"""What the disk has to take over the contents of the memory when an engine closes."""
_MAX_PENDING = 2
"""Downloads that are waited for only when the next one starts, so that a copy has a step's time to arrive."""


class PrefixStorage:
    """Copies what was named to the tiers, one step behind, and looks it up there for the scheduler.

    What it tells the scheduler at once is what host memory has. Nobody but the threads of the store waits for a disk.
    """

    def __init__(self, store: TieredStore, transfer: CacheTransfer, memory_bytes: int) -> None:
        """Take over a store whose memory tier holds so many bytes."""
        self._store = store
        self._fetcher = Fetcher(
            store, capacity_bytes=memory_bytes, block_bytes=transfer.block_bytes, snapshot_bytes=transfer.slot_bytes
        )
        self._transfer = transfer
        self._pending: deque[tuple[Sequence[Save], Download]] = deque()
        self._unwanted: set[bytes] = set()

    def contains(self, key: bytes) -> bool:
        """Whether :meth:`get` would probably find it."""
        return self._store.is_in_memory(key)

    def get(self, key: bytes) -> bytes | None:
        """The payload if it is in host memory, or None."""
        return self._store.get_from_memory(key)

    def fetch(self, choose: Choose) -> Fetch | None:
        """Begin to bring into memory what is chosen from all tiers; None where memory is the only one."""
        return self._fetcher.fetch(choose) if self._store.has_slower else None

    def delete(self, key: bytes) -> None:
        """Forget a payload, also one that is being copied."""
        self._store.delete(key)
        if self._pending:
            self._unwanted.add(key)

    def save(self, saves: Sequence[Save]) -> None:
        """Start copying; takes over what was copied before."""
        if saves:
            self._pending.append((saves, self._transfer.read(saves)))
        while len(self._pending) >= (_MAX_PENDING if saves else 1):
            self._take_over()

    def close(self) -> None:
        """Take over the rest, and write it to the disk if there is one."""
        while self._pending:
            self._take_over()
        self._store.close(_CLOSE_S)

    def _take_over(self) -> None:
        saves, download = self._pending.popleft()
        for save, tensor in zip(saves, download.wait(), strict=True):
            if save.key not in self._unwanted:
                self._store.put(save.key, tensor.numpy().tobytes())
        if not self._pending:
            self._unwanted.clear()


def open_storage(config: EngineConfig, identity: CacheIdentity, transfer: CacheTransfer) -> PrefixStorage | None:
    """The tiers that the settings ask for; None without any.

    Raises:
        ConfigError: A size is not allowed.
    """
    if not config.prefix_memory_gib and not config.prefix_disk:
        return None
    slower = []
    if config.prefix_disk:
        slower.append(DiskTier(Path(config.prefix_disk), int(config.prefix_disk_gib * _GIB), identity))
    memory_bytes = int(config.prefix_memory_gib * _GIB)
    return PrefixStorage(TieredStore(MemoryTier(memory_bytes), *slower), transfer, memory_bytes)
