"""The disk tier when nothing is wrong: order, bounds, restarts."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.prefix_cache.block_file import HEADER_BYTES
from deepinfer_core.prefix_cache.disk_index import path_of
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from tests.prefix_cache.builders import IDENTITY, key, payload

SIZE = HEADER_BYTES + 100
"""Of the file of a payload of 100 bytes."""


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_found_after_a_restart(tmp_path: Path) -> None:
    first = DiskTier(tmp_path / "made" / "for us", 10_000, IDENTITY)
    for number in range(5):
        assert first.put(key(number), payload(number)) == []

    second = DiskTier(tmp_path / "made" / "for us", 10_000, IDENTITY)

    assert [second.get(key(number)) for number in range(5)] == [payload(number) for number in range(5)]
    assert second.get(key(5)) is None
    assert second.statistics() == replace(
        first.statistics(), num_queries=6, num_hits=5, used_bytes=bytes_in(tmp_path), num_entries=5
    )


def test_empty_payload_is_a_payload(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 1000, IDENTITY)
    tier.put(key(0), b"")

    assert tier.get(key(0)) == b""


def test_what_was_used_longest_ago_leaves_first(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 3 * SIZE, IDENTITY)
    for number in range(3):
        tier.put(key(number), payload(number, 100))
    tier.get(key(0))

    tier.put(key(3), payload(3, 100))

    assert [tier.contains(key(number)) for number in range(4)] == [True, False, True, True]
    assert tier.statistics().num_evictions == 1


def test_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, 4 * SIZE, IDENTITY)
    for number in range(4):
        first.put(key(number), payload(number, 100))
    for number in (2, 0):
        first.get(key(number))
    first.put(key(3), payload(3, 100))

    second = DiskTier(tmp_path, 4 * SIZE, IDENTITY)
    gone = []
    for number in range(4, 8):
        before = [old for old in range(4) if second.contains(key(old))]
        second.put(key(number), payload(number, 100))
        gone += [old for old in before if not second.contains(key(old))]

    assert gone == [1, 2, 0, 3]


def test_smaller_capacity_after_a_restart_is_kept_from_the_next_write_on(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, 9 * SIZE, IDENTITY)
    for number in range(9):
        first.put(key(number), payload(number, 100))

    second = DiskTier(tmp_path, 3 * SIZE, IDENTITY)
    second.put(key(9), payload(9, 100))

    assert bytes_in(tmp_path) == 3 * SIZE
    assert [number for number in range(10) if second.contains(key(number))] == [7, 8, 9]


def test_putting_again_writes_nothing_and_is_a_use(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 2 * SIZE, IDENTITY)
    tier.put(key(0), payload(0, 100))
    tier.put(key(1), payload(1, 100))
    file = path_of(tmp_path, key(0))
    before = file.stat().st_ino

    tier.put(key(0), payload(0, 100))
    tier.put(key(2), payload(2, 100))

    assert file.stat().st_ino == before
    assert [tier.contains(key(number)) for number in range(3)] == [True, False, True]


def test_payload_larger_than_the_tier_comes_back(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, SIZE, IDENTITY)
    tier.put(key(0), payload(0, 100))

    assert tier.put(key(1), payload(1, 101)) == [(key(1), payload(1, 101))]
    assert tier.get(key(0)) == payload(0, 100)
    assert tier.statistics().num_refused == 1


def test_deleted_payload_is_a_miss(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 1000, IDENTITY)
    tier.put(key(0), b"1")
    tier.delete(key(0))
    tier.delete(key(1))

    assert tier.get(key(0)) is None
    assert (tier.statistics().num_entries, tier.statistics().used_bytes, tier.statistics().num_errors) == (0, 0, 0)


def test_random_load_never_exceeds_the_capacity_at_any_write(tmp_path: Path) -> None:
    """Counted when a file is about to appear: room was made before."""
    capacity = 4000
    peaks = []

    def write_and_count(path: Path, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        peaks.append(bytes_in(tmp_path) + len(data))
        path.write_bytes(data)

    tier = DiskTier(tmp_path, capacity, IDENTITY, write_file=write_and_count)
    for _ in range(600):
        number = random.randrange(60)
        action = random.random()
        if action < 0.5:
            tier.put(key(number), payload(number))
        elif action < 0.95:
            assert tier.get(key(number)) in {None, payload(number)}
        else:
            tier.delete(key(number))
        assert tier.statistics().used_bytes <= capacity

    assert max(peaks) <= capacity
    assert tier.statistics().used_bytes == bytes_in(tmp_path)
    assert tier.statistics().num_hits > 0
    assert tier.statistics().num_evictions > 0


def test_only_files_of_the_tier_are_touched(tmp_path: Path) -> None:
    theirs = [tmp_path / "notes.txt", tmp_path / "ab" / "thesis.block", tmp_path / "abc" / f"{key(1).hex()}.block"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"precious" * 100)

    tier = DiskTier(tmp_path, 2 * SIZE, IDENTITY)
    for number in range(20):
        tier.put(key(number), payload(number, 100))

    assert all(path.read_bytes() == b"precious" * 100 for path in theirs)
    assert tier.statistics().num_entries == 2


def test_temporary_files_of_a_killed_process_are_removed_when_they_are_old(tmp_path: Path) -> None:
    shard = tmp_path / "ab"
    shard.mkdir()
    old, new = shard / ".old.tmp", shard / ".new.tmp"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)

    DiskTier(tmp_path, 1000, IDENTITY)

    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("capacity", [0, -5])
def test_capacity_that_holds_nothing_is_refused(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ConfigError, match=f"capacity_bytes={capacity}"):
        DiskTier(tmp_path, capacity, IDENTITY)
