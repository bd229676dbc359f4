"""The tier in host memory."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from deepinfer_core.errors import ConfigError
from deepinfer_core.prefix_cache.tier import Entry, TierStatistics


class MemoryTier:
    """Payloads in host memory, up to a number of bytes; the one that was used longest ago leaves first.

    The number is kept at every moment: room is made before a payload is taken. Only payloads are counted; an entry
    costs about 200 bytes beside.
    """

    name = "memory"

    def __init__(self, capacity_bytes: int) -> None:
        """Start empty. With capacity 0 every payload goes straight to the next tier.

        Raises:
            ConfigError: The capacity is negative.
        """
        if capacity_bytes < 0:
            raise ConfigError(f"capacity_bytes={capacity_bytes} must be at least 0", "memory tier of the prefix cache")
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._used_bytes = 0
        self._num_queries = self._num_hits = self._num_evictions = self._num_refused = 0
        self._lock = Lock()

    def get(self, key: bytes) -> bytes | None:
        """The payload, now the one that was used last; None if it is not here."""
        with self._lock:
            self._num_queries += 1
            payload = self._entries.get(key)
            if payload is not None:
                self._entries.move_to_end(key)
                self._num_hits += 1
            return payload

    def put(self, key: bytes, payload: bytes) -> list[Entry]:
        """Take a payload; what had to leave for it is returned, or the payload itself if it is larger than the tier."""
        with self._lock:
            self._remove(key)
            if len(payload) > self._capacity_bytes:
                self._num_refused += 1
                return [(key, payload)]
            left: list[Entry] = []
            while self._used_bytes + len(payload) > self._capacity_bytes:
                left.append(self._pop_oldest())
            self._num_evictions += len(left)
            self._entries[key] = payload
            self._used_bytes += len(payload)
            return left

    def pop_oldest(self) -> Entry | None:
        """Take out what was used longest ago; None when nothing is left."""
        with self._lock:
            return self._pop_oldest() if self._entries else None

    def contains(self, key: bytes) -> bool:
        return key in self._entries

    def delete(self, key: bytes) -> None:
        with self._lock:
            self._remove(key)

    def statistics(self) -> TierStatistics:
        with self._lock:
            return TierStatistics(
                num_entries=len(self._entries),
                used_bytes=self._used_bytes,
                capacity_bytes=self._capacity_bytes,
                num_queries=self._num_queries,
                num_hits=self._num_hits,
                num_evictions=self._num_evictions,
                num_refused=self._num_refused,
            )

    def _pop_oldest(self) -> Entry:
        key, payload = self._entries.popitem(last=False)
        self._used_bytes -= len(payload)
        return key, payload

    def _remove(self, key: bytes) -> None:
        payload = self._entries.pop(key, None)
        if payload is not None:
            self._used_bytes -= len(payload)
