"""Payloads on their way to a slow tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Condition, Thread

from deepinfer_core.logging import get_logger
from deepinfer_core.prefix_cache.tier import TierStatistics

_log = get_logger(__name__)


class WriteQueue:
    """Writes payloads on a thread of its own, in order, and never holds more than a number of bytes.

    A payload counts and can be found here until it is written. The thread ends with the process if it was not closed.
    """

    def __init__(self, write: Callable[[bytes, bytes], object], capacity_bytes: int) -> None:
        self._write = write
        self._capacity_bytes = capacity_bytes
        self._pending: OrderedDict[bytes, bytes] = OrderedDict()
        self._used_bytes = 0
        self._writing: bytes | None = None
        self._is_closed = False
        self._num_queries = self._num_hits = self._num_refused = self._num_errors = 0
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="prefix-cache-writer", daemon=True)
        self._thread.start()

    def offer(self, key: bytes, payload: bytes, timeout_s: float | None = 0.0) -> bool:
        """Take a payload to write.

        Args:
            key: One that is on its way already is not taken twice.
            payload: Its bytes.
            timeout_s: How long to wait for room; None for as long as it takes.

        Returns:
            False if it was dropped: no room, or the queue is closed.
        """
        size = len(payload)
        with self._changed:
            if size <= self._capacity_bytes:
                self._changed.wait_for(lambda: key in self._pending or self._has_room(size), timeout_s)
            if key in self._pending:
                return True
            if self._is_closed or not self._has_room(size):
                self._num_refused += 1
                return False
            self._pending[key] = payload
            self._used_bytes += size
            self._changed.notify_all()
            return True

    def get(self, key: bytes) -> bytes | None:
        """A payload that is not written yet."""
        with self._changed:
            self._num_queries += 1
            payload = self._pending.get(key)
            self._num_hits += payload is not None
            return payload

    def contains(self, key: bytes) -> bool:
        return key in self._pending

    def discard(self, key: bytes) -> None:
        """Forget a payload; one that is being written is waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._writing != key)
            self._remove(key)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written; False if the time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Take nothing more, write what is there, and end the thread; what is not written in time is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if not self.flush(timeout_s):
            with self._changed:
                _log.warning("prefix cache: %d payloads were not written in time and are dropped", len(self._pending))
                for key in [key for key in self._pending if key != self._writing]:
                    self._remove(key)
            return
        self._thread.join()

    def statistics(self) -> TierStatistics:
        """A snapshot; refused are those that were dropped because the writes did not keep up."""
        with self._changed:
            return TierStatistics(
                num_entries=len(self._pending),
                used_bytes=self._used_bytes,
                capacity_bytes=self._capacity_bytes,
                num_queries=self._num_queries,
                num_hits=self._num_hits,
                num_refused=self._num_refused,
                num_errors=self._num_errors,
            )

    def _has_room(self, size: int) -> bool:
        return self._is_closed or self._used_bytes + size <= self._capacity_bytes

    def _run(self) -> None:
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """Wait for a payload and write it; False at the end.

        A method of its own, because a variable of the loop would keep the last payload alive while it waits.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            if not self._pending:
                return False
            key, payload = next(iter(self._pending.items()))
            self._writing = key
        try:
            self._write(key, payload)
        except Exception:  # noqa: BLE001  # a tier that breaks its promise must not end the thread
            _log.exception("prefix cache: a tier raised an error when it was given a payload, which is lost")
            self._num_errors += 1
        with self._changed:
            self._writing = None
            self._remove(key)
        return True

    def _remove(self, key: bytes) -> None:
        payload = self._pending.pop(key, None)
        if payload is not None:
            self._used_bytes -= len(payload)
        self._changed.notify_all()
