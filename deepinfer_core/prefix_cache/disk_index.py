"""Which files a folder of the disk tier has, in the order of their last use."""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

SUFFIX = ".block"
_SHARD = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"([0-9a-f]{32})\.block")
_ABANDONED_AFTER_S = 3600
"""Age at which a temporary file is nobody's: its writer would have been done long ago."""


class DiskIndex:
    """Keys and file sizes of one folder, oldest use first. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._used_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def add(self, key: bytes, size: int) -> None:
        """Note that a file is there and was used just now."""
        with self._lock:
            self._used_bytes += size - self._sizes.pop(key, 0)
            self._sizes[key] = size

    def remove(self, key: bytes) -> None:
        """Note that a file is not there."""
        with self._lock:
            self._used_bytes -= self._sizes.pop(key, 0)

    def oldest(self) -> bytes | None:
        """The key that was used longest ago."""
        with self._lock:
            return next(iter(self._sizes), None)

    def size(self, key: bytes) -> int | None:
        """Bytes of a file, as far as known."""
        return self._sizes.get(key)

    def read_folder(self, folder: Path) -> None:
        """Forget everything and look at the folder, whose modification times are times of use.

        Raises:
            OSError: The folder cannot be read.
        """
        found = sorted(_files(folder))
        with self._lock:
            self._sizes = OrderedDict((key, size) for _, key, size in found)
            self._used_bytes = sum(self._sizes.values())


def path_of(folder: Path, key: bytes) -> Path:
    """Where the file of a key is: in one of 256 folders, because file systems dislike millions of names in one."""
    name = key.hex()
    return folder / name[:2] / f"{name}{SUFFIX}"


def _files(folder: Path) -> Iterator[tuple[int, bytes, int]]:
    """Time of last use in nanoseconds, key and size of each file; abandoned temporary files are removed on the way."""
    with os.scandir(folder) as shards:
        for shard in shards:
            if _SHARD.fullmatch(shard.name) and shard.is_dir():
                yield from _files_of_shard(shard.path)


def _files_of_shard(shard: str) -> Iterator[tuple[int, bytes, int]]:
    with os.scandir(shard) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process has just removed it
                status = entry.stat()
                if name := _NAME.fullmatch(entry.name):
                    yield status.st_mtime_ns, bytes.fromhex(name[1]), status.st_size
                elif entry.name.endswith(".tmp") and status.st_mtime < time.time() - _ABANDONED_AFTER_S:
                    Path(entry.path).unlink()
