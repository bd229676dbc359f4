"""The tier on a disk: one file for each key, usable after a restart and by several processes at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Lock

from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.prefix_cache import block_file
from deepinfer_core.prefix_cache.block_file import HEADER_BYTES, UnusableFile, WriteFile
from deepinfer_core.prefix_cache.disk_index import DiskIndex, path_of
from deepinfer_core.prefix_cache.keys import CacheIdentity
from deepinfer_core.prefix_cache.tier import Entry, TierStatistics

_log = get_logger(__name__)


class DiskTier:
    """Payloads in files below a folder, up to a number of bytes; the one that was used longest ago leaves first.

    **Order of use** is the files' modification time, set at each use, so it survives restarts and is common to all
    processes that share the folder.

    **Several processes** may use one folder. Files appear whole, by renaming, and what another process removed is a
    miss. Each keeps its own count of bytes and looks at the folder again after it has written an eighth of the
    capacity, so n processes hold the folder below (1 + n / 8) times the capacity; one process below the capacity.

    **Faults** never reach the caller. A file that is not exactly what was written under its key is a miss and is
    removed. When a write fails (disk full, folder read-only or gone) the tier turns itself off for writes until it is
    made again, and reads go on. Each kind of fault is said once.
    """

    name = "disk"

    def __init__(
        self,
        folder: Path,
        capacity_bytes: int,
        identity: CacheIdentity,
        *,
        write_file: WriteFile = block_file.write_whole,
    ) -> None:
        """Make the folder if it is not there, and find what an earlier run left in it.

        Args:
            folder: Only files that look like the tier's own, in folders that do, are ever touched.
            capacity_bytes: What its files may have together, headers included.
            identity: The engine's own, without adapter and images; files of another one are never used, and leave in
                their turn.
            write_file: How a file is written.

        Raises:
            ConfigError: The capacity is not positive.
        """
        if capacity_bytes <= 0:
            raise ConfigError(f"capacity_bytes={capacity_bytes} must be positive", "disk tier of the prefix cache")
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._identity = identity.digest()
        self._write_file = write_file
        self._index = DiskIndex()
        self._write_lock = Lock()  # one writer at a time, and no writer while the folder is looked at
        self._counter_lock = Lock()
        self._num_queries = self._num_hits = self._num_evictions = self._num_refused = self._num_errors = 0
        self._is_writable = True
        self._bytes_since_look = 0
        self._last_use_ns = 0
        self._said: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._index.read_folder(folder)
        except OSError as error:
            self._turn_off(error)

    def get(self, key: bytes) -> bytes | None:
        """The payload, now the one that was used last; None if it is not here or its file is unusable."""
        with self._counter_lock:
            self._num_queries += 1
        payload = self._read(key)
        if payload is None:
            return None
        with self._counter_lock:
            self._num_hits += 1
        self._mark_used(key)
        self._index.add(key, HEADER_BYTES + len(payload))
        return payload

    def put(self, key: bytes, payload: bytes) -> list[Entry]:
        """Write a file, unless there is one; returns the payload itself if it was refused."""
        size = HEADER_BYTES + len(payload)
        with self._write_lock:
            if self._is_writable and size <= self._capacity_bytes:
                try:
                    self._store(key, payload, size)
                except OSError as error:
                    self._turn_off(error)
                else:
                    return []
        with self._counter_lock:
            self._num_refused += 1
        return [(key, payload)]

    def contains(self, key: bytes) -> bool:
        """Whether there is a file, which may still turn out to be unusable."""
        return path_of(self._folder, key).is_file()

    def delete(self, key: bytes) -> None:
        self._index.remove(key)
        try:
            path_of(self._folder, key).unlink(missing_ok=True)
        except OSError as error:
            self._note(f"a file cannot be removed: {_reason(error)}")

    def statistics(self) -> TierStatistics:
        """A snapshot; entries and bytes are what this process knows of."""
        with self._counter_lock:
            return TierStatistics(
                num_entries=len(self._index),
                used_bytes=self._index.used_bytes,
                capacity_bytes=self._capacity_bytes,
                num_queries=self._num_queries,
                num_hits=self._num_hits,
                num_evictions=self._num_evictions,
                num_refused=self._num_refused,
                num_errors=self._num_errors,
                is_writable=self._is_writable,
            )

    def _read(self, key: bytes) -> bytes | None:
        try:
            return block_file.read(path_of(self._folder, key), self._identity, key)
        except FileNotFoundError:
            self._index.remove(key)
        except UnusableFile as fault:
            self._note(f"a file is {fault.kind}; it is a miss and was removed")
            self.delete(key)
        except OSError as error:
            self._note(f"a file cannot be read: {_reason(error)}; it is a miss")
        return None

    def _store(self, key: bytes, payload: bytes, size: int) -> None:
        if self._index.size(key) == size and self._mark_used(key):
            self._index.add(key, size)
            return
        self._make_room(size)
        path = path_of(self._folder, key)
        try:
            self._write(path, key, payload)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)  # never its parents: a folder that vanished may be an unmounted disk
            self._write(path, key, payload)
        self._index.add(key, size)
        self._mark_used(key)
        self._look_again_after(size)

    def _write(self, path: Path, key: bytes, payload: bytes) -> None:
        self._write_file(path, (block_file.header(self._identity, key, payload), payload))

    def _make_room(self, size: int) -> None:
        while self._index.used_bytes + size > self._capacity_bytes and (oldest := self._index.oldest()) is not None:
            path_of(self._folder, oldest).unlink(missing_ok=True)
            self._index.remove(oldest)
            with self._counter_lock:
                self._num_evictions += 1

    def _look_again_after(self, size: int) -> None:
        """Learn what other processes wrote and removed, every now and then."""
        self._bytes_since_look += size
        if self._bytes_since_look >= self._capacity_bytes // 8:
            self._bytes_since_look = 0
            self._index.read_folder(self._folder)

    def _mark_used(self, key: bytes) -> bool:
        """Set a file's time of use, later than any that this process has set; False if that cannot be done."""
        with self._counter_lock:
            self._last_use_ns = max(self._last_use_ns + 1, time.time_ns())
            now = self._last_use_ns
        try:
            os.utime(path_of(self._folder, key), ns=(now, now))
        except OSError:  # a folder that is read-only keeps its order; a file that another process removed has none
            return False
        return True

    def _turn_off(self, error: OSError) -> None:
        self._is_writable = False
        self._note(f"writing failed: {_reason(error)}; nothing is written there until the next start, reads go on")

    def _note(self, fault: str) -> None:
        """Count a fault, and say it if it is the first of its kind."""
        with self._counter_lock:
            self._num_errors += 1
            is_new = fault not in self._said
            self._said.add(fault)
        if is_new:
            _log.warning("prefix cache in %s: %s (said once)", self._folder, fault)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
