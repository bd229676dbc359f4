"""The disk tier when something is wrong: a miss and one warning, never a wrong answer or an exception."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer_core.prefix_cache.block_file import HEADER_BYTES, write_whole
from deepinfer_core.prefix_cache.disk_index import path_of
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from tests.prefix_cache.builders import IDENTITY, key, payload

FIELDS = {
    "magic": (0, 8, "no file of a prefix cache"),
    "version": (8, 12, "of another format version"),
    "identity": (12, 28, "foreign"),
    "key": (28, 44, "misplaced"),
    "length": (44, 52, "truncated or too long"),
    "checksum": (52, 56, "corrupt"),
    "payload": (56, 156, "corrupt"),
}
"""Part of a file -> its first byte, the byte after its last, and how a change of it is called."""


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    tier = DiskTier(tmp_path, 100_000, IDENTITY)
    tier.put(key(0), payload(0, 100))
    return tier


@pytest.fixture
def file(tier: DiskTier, tmp_path: Path) -> Path:
    """Of the payload that is there."""
    return path_of(tmp_path, key(0))


def flipped(data: bytes, *bits: int) -> bytes:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def assert_is_a_miss_with_one_warning(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture, word: str) -> None:
    assert tier.get(key(0)) is None
    assert not file.exists()
    assert tier.get(key(0)) is None
    assert [word in record.message and str(file.parents[1]) in record.message for record in caplog.records] == [True]
    statistics = tier.statistics()
    assert (statistics.num_errors, statistics.num_entries, statistics.used_bytes) == (1, 0, 0)
    assert tier.put(key(0), payload(0, 100)) == []
    assert tier.get(key(0)) == payload(0, 100)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("at", ["first", "last"])
def test_changed_field(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture, field: str, at: str) -> None:
    start, end, word = FIELDS[field]

    file.write_bytes(flipped(file.read_bytes(), 8 * start if at == "first" else 8 * end - 1))

    assert_is_a_miss_with_one_warning(tier, file, caplog, word)


def test_every_bit_of_a_file_matters(tier: DiskTier, file: Path) -> None:
    good = file.read_bytes()
    wrong = []
    for bit in range(8 * len(good)):
        file.write_bytes(flipped(good, bit))
        if tier.get(key(0)) is not None:
            wrong.append(bit)

    assert wrong == []


def test_random_damage_of_many_bits_is_a_miss_and_said_once_for_each_kind(
    tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = file.read_bytes()
    for _ in range(500):
        bits = random.sample(range(8 * len(good)), random.randrange(2, 200))
        file.write_bytes(flipped(good, *bits))
        assert tier.get(key(0)) is None

    messages = [record.message for record in caplog.records]
    assert 0 < len(messages) <= len(FIELDS)
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99])
def test_file_that_was_cut(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture, size: int) -> None:
    os.truncate(file, size)

    assert_is_a_miss_with_one_warning(tier, file, caplog, "truncated")


def test_file_with_bytes_after_its_end(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with file.open("ab") as end:
        end.write(b"x")

    assert_is_a_miss_with_one_warning(tier, file, caplog, "too long")


def test_file_of_zeros_as_power_failures_leave_it(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(bytes(file.stat().st_size))

    assert_is_a_miss_with_one_warning(tier, file, caplog, "no file of a prefix cache")


def test_file_of_another_engine(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file.unlink()
    other = DiskTier(tmp_path, 100_000, replace(IDENTITY, model="another"))
    other.put(key(0), payload(0, 100))

    assert_is_a_miss_with_one_warning(tier, file, caplog, "foreign")


def test_file_under_the_name_of_another(
    tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    other = path_of(tmp_path, key(1))
    tier.put(key(1), payload(1, 100))
    other.replace(file)
    tier.delete(key(1))

    assert_is_a_miss_with_one_warning(tier, file, caplog, "misplaced")


def test_file_that_cannot_be_read_is_a_miss(tier: DiskTier, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.unlink()
    file.mkdir()

    assert [tier.get(key(0)) for _ in range(3)] == [None] * 3
    assert [record.message for record in caplog.records if "cannot be read" in record.message] != []
    assert len(caplog.records) == 1
    assert tier.statistics().num_errors == 3


class FullDisk:
    """Writes files until the disk is full, then fails half way through a file, as a disk does."""

    def __init__(self, num_files: int, error: int) -> None:
        self.num_files = num_files
        self.error = error

    def __call__(self, path: Path, pieces: Sequence[bytes]) -> None:
        if self.num_files == 0:
            write_whole(path, self._half(pieces))
        write_whole(path, pieces)
        self.num_files -= 1

    def _half(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        error = self.error

        class Half(list[bytes]):
            def __iter__(self):
                yield pieces[0]
                raise OSError(error, os.strerror(error))

        return Half()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES])
def test_full_disk_turns_writing_off_and_reads_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    tier = DiskTier(tmp_path, 100_000, IDENTITY, write_file=FullDisk(2, error))

    refused = [tier.put(key(number), payload(number)) for number in range(5)]

    assert refused == [[], [], *([(key(number), payload(number))] for number in (2, 3, 4))]
    assert [tier.get(key(number)) for number in range(3)] == [payload(0), payload(1), None]
    assert [os.strerror(error) in record.message for record in caplog.records] == [True]
    assert list(tmp_path.rglob("*.tmp")) == []
    statistics = tier.statistics()
    assert (statistics.is_writable, statistics.num_refused, statistics.num_errors) == (False, 3, 1)


def test_device_that_is_really_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def to_a_full_device(path: Path, pieces: Sequence[bytes]) -> None:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"".join(pieces))

    tier = DiskTier(tmp_path, 1000, IDENTITY, write_file=to_a_full_device)

    assert tier.put(key(0), b"1") == [(key(0), b"1")]
    assert [os.strerror(errno.ENOSPC) in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_folder_that_cannot_be_made_leaves_a_tier_that_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str
) -> None:
    (tmp_path / "file").write_bytes(b"theirs")

    tier = DiskTier(tmp_path / folder, 1000, IDENTITY)

    assert tier.put(key(0), b"1") == [(key(0), b"1")]
    assert not tier.contains(key(0))
    assert len(caplog.records) == 1
    assert not tier.statistics().is_writable
    assert (tmp_path / "file").read_bytes() == b"theirs"


def test_folder_that_vanishes_is_not_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "mounted"
    tier = DiskTier(folder, 1000, IDENTITY)
    tier.put(key(0), b"1")
    shutil.rmtree(folder)

    assert tier.get(key(0)) is None
    assert tier.put(key(0), b"1") == [(key(0), b"1")]
    assert tier.put(key(1), b"1") == [(key(1), b"1")]
    tier.delete(key(0))
    assert not folder.exists()
    assert len(caplog.records) == 1


def test_shard_that_vanishes_is_made_again(tier: DiskTier, file: Path) -> None:
    shutil.rmtree(file.parent)

    assert tier.get(key(0)) is None
    assert tier.put(key(0), payload(0, 100)) == []
    assert tier.get(key(0)) == payload(0, 100)
