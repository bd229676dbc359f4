"""Host memory in front of slower tiers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from threading import Lock

from deepinfer_core.errors import require
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tier import Entry, Tier, TierStatistics
from deepinfer_core.prefix_cache.write_queue import WriteQueue


class TieredStore:
    """Payloads by key: new ones in memory, what leaves memory in the next tier, what is used again back in memory.

    Methods may be called from any thread and raise nothing. :meth:`put`, :meth:`get_from_memory`, :meth:`is_in_memory`,
    :meth:`fetch` and :meth:`run_in_reader` return at once and are for an engine's loop; the others may wait for a slow
    tier.

    **Host memory**: the memory tier and the queue together never hold more than the sum of their capacities. On top
    comes what is in hand: the payload of a call, and the one that each reader is loading.
    """

    def __init__(
        self, memory: MemoryTier, *slower: Tier, queue_bytes: int = 256 * 1024**2, num_readers: int = 4
    ) -> None:
        """Start the threads.

        Args:
            memory: The first tier.
            slower: The others, fastest first.
            queue_bytes: Memory for payloads on their way to the second tier. When it is full, what leaves the first
                is lost, and counted.
            num_readers: Threads that load from slow tiers.
        """
        names = [memory.name, "queue", *(tier.name for tier in slower)]
        require(len(set(names)) == len(names), f"two tiers have the same name: {names}")
        self._memory = memory
        self._slower = slower
        self._queue = WriteQueue(self._demote, queue_bytes)
        self._readers = ThreadPoolExecutor(max_workers=num_readers, thread_name_prefix="prefix-cache-reader")
        self._running: set[Future[object]] = set()
        self._loading: Counter[bytes] = Counter()
        self._unwanted: set[bytes] = set()
        self._is_closed = False
        self._lock = Lock()  # of the four above

    @property
    def has_slower(self) -> bool:
        """Whether there is a tier behind memory."""
        return bool(self._slower)

    def put(self, key: bytes, payload: bytes) -> None:
        """Take a payload; whatever it drives out of memory is written to the next tier later."""
        if not self._is_closed:
            self._hand_on(self._memory.put(key, payload))

    def get_from_memory(self, key: bytes) -> bytes | None:
        """The payload if it is in memory or on its way to the next tier."""
        payload = self._memory.get(key)
        return self._queue.get(key) if payload is None and self._slower else payload

    def is_in_memory(self, key: bytes) -> bool:
        """Whether :meth:`get_from_memory` would find it."""
        return self._memory.contains(key) or self._queue.contains(key)

    def get(self, key: bytes) -> bytes | None:
        """The payload, from the first tier that has it, and now in memory; None if no tier has it."""
        payload = self.get_from_memory(key)
        return self._load(key) if payload is None else payload

    def run_in_reader(self, task: Callable[[], object]) -> bool:
        """Call something that may wait for a slow tier in a thread that reads; False when the store is closed."""
        with self._lock:
            if self._is_closed:
                return False
            future = self._readers.submit(task)
            self._running.add(future)
        future.add_done_callback(self._note_end)
        return True

    def contains(self, key: bytes) -> bool:
        """Whether ``get`` would probably find it; asks the slow tiers if it is not in memory."""
        tiers = (self._memory, self._queue, *self._slower)
        return any(tier.contains(key) for tier in tiers)

    def delete(self, key: bytes) -> None:
        """Forget a payload everywhere, also one that is being read."""
        with self._lock:
            if key in self._loading:
                self._unwanted.add(key)
        self._memory.delete(key)
        self._queue.discard(key)
        for tier in self._slower:
            tier.delete(key)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that left memory is written; False if the time was too short."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Write what memory holds to the next tier, so that a later start finds it, and end the threads.

        What is not written within ``timeout_s`` seconds (None: as long as it takes) is lost, and reads that take longer
        are left alone. Afterwards nothing is taken or found.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        self._readers.shutdown(wait=False, cancel_futures=True)
        wait_for(running, timeout_s)
        while (entry := self._memory.pop_oldest()) is not None:
            if self._slower:
                key, payload = entry
                self._queue.offer(key, payload, timeout_s=_left(deadline))
        self._queue.close(_left(deadline))

    def statistics(self) -> Mapping[str, TierStatistics]:
        """A snapshot of each tier by name, in order; ``queue`` is what is on its way to the second."""
        slower = {tier.name: tier.statistics() for tier in self._slower}
        return {self._memory.name: self._memory.statistics(), "queue": self._queue.statistics(), **slower}

    def _note_end(self, future: Future[object]) -> None:
        with self._lock:
            self._running.discard(future)

    def _load(self, key: bytes) -> bytes | None:
        """Read from the slow tiers; what is deleted meanwhile, or comes after the end, does not get into memory."""
        with self._lock:
            self._loading[key] += 1
        payload = self._read(key)
        with self._lock:
            self._loading[key] -= 1
            if self._is_closed or key in self._unwanted:
                payload = None
            if not self._loading[key]:
                del self._loading[key]
                self._unwanted.discard(key)
            left = self._memory.put(key, payload) if payload is not None else []
        self._hand_on(entry for entry in left if entry[0] != key)  # memory may be too small for it
        return payload

    def _read(self, key: bytes) -> bytes | None:
        for tier in self._slower:
            if self._is_closed:
                return None
            payload = tier.get(key)
            if payload is not None:
                return payload
        return None

    def _hand_on(self, left: Iterable[Entry]) -> None:
        """Queue what left memory, if there is a place for it."""
        if self._slower:
            for key, payload in left:
                self._queue.offer(key, payload)

    def _demote(self, key: bytes, payload: bytes) -> None:
        """Write to the second tier, what leaves that one to the third, and so on; runs on the queue's thread."""
        entries = [(key, payload)]
        for tier in self._slower:
            entries = [left for entry in entries for left in tier.put(*entry)]


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
