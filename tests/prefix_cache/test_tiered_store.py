"""Memory before disk: what moves when, and what both may hold together."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.prefix_cache.block_file import HEADER_BYTES
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tier import Entry, Tier, TierStatistics
from deepinfer_core.prefix_cache.tiered_store import TieredStore
from tests.prefix_cache.builders import IDENTITY, key, payload
from tests.prefix_cache.slow import HeldTier, wait_until


def new_store(folder: Path, memory_bytes: int = 300, queue_bytes: int = 100_000) -> TieredStore:
    return TieredStore(MemoryTier(memory_bytes), DiskTier(folder, 100_000, IDENTITY), queue_bytes=queue_bytes)


def test_what_leaves_memory_is_found_on_the_disk_and_comes_back(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for number in range(6):
        store.put(key(number), payload(number, 100))
    store.flush()
    before = store.statistics()

    assert store.get_from_memory(key(0)) is None
    assert store.get(key(0)) == payload(0, 100)
    assert store.get_from_memory(key(0)) == payload(0, 100)
    assert [before[name].num_entries for name in ("memory", "queue", "disk")] == [3, 0, 3]
    assert store.statistics()["disk"].num_hits == 1
    store.close()


def test_closed_store_is_found_whole_by_the_next_one(tmp_path: Path) -> None:
    first = new_store(tmp_path, queue_bytes=150)
    for number in range(3):
        first.put(key(number), payload(number, 100))
    first.close()

    second = new_store(tmp_path)

    assert [second.get(key(number)) for number in range(3)] == [payload(number, 100) for number in range(3)]
    second.close()


def test_closed_store_takes_and_finds_nothing_and_closes_again(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.put(key(0), b"1")
    store.close()
    store.put(key(1), b"2")
    store.close()

    assert [store.get(key(number)) for number in range(2)] == [None, None]
    assert not store.run_in_reader(lambda: None)
    assert store.statistics()["memory"].used_bytes == 0


def read_later(store: TieredStore, number: int) -> Future[bytes | None]:
    """A payload as a thread of the store gets it."""
    found: Future[bytes | None] = Future()
    assert store.run_in_reader(lambda: found.set_result(store.get(key(number))))
    return found


def test_readers_load_on_another_thread_and_promote(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for number in range(6):
        store.put(key(number), payload(number, 100))
    store.flush()

    futures = [read_later(store, number) for number in range(7)]

    assert [future.result() for future in futures] == [*(payload(number, 100) for number in range(6)), None]
    assert store.statistics()["disk"].num_hits >= 3
    store.close()


def test_payload_too_large_for_memory_goes_to_the_disk(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.put(key(0), payload(0, 100))
    store.put(key(1), payload(1, 301))
    store.flush()
    writes = store.statistics()["disk"].num_entries

    assert store.get(key(1)) == payload(1, 301)
    assert store.get_from_memory(key(0)) == payload(0, 100)
    assert (writes, store.statistics()["queue"].num_entries) == (1, 0)
    store.close()


def test_store_of_memory_alone_loses_what_leaves_it() -> None:
    store = TieredStore(MemoryTier(100))
    store.put(key(0), payload(0, 100))
    store.put(key(1), payload(1, 100))

    assert [store.get(key(number)) for number in range(2)] == [None, payload(1, 100)]
    assert read_later(store, 0).result() is None
    store.close()


def test_what_leaves_the_second_tier_goes_to_the_third(tmp_path: Path) -> None:
    class Second(MemoryTier):
        name = "second"

    store = TieredStore(MemoryTier(100), Second(100), DiskTier(tmp_path, 100_000, IDENTITY))
    for number in range(4):
        store.put(key(number), payload(number, 100))
        store.flush()

    held = {name: statistics.num_entries for name, statistics in store.statistics().items()}

    assert held == {"memory": 1, "queue": 0, "second": 1, "disk": 2}
    for number in range(4):
        assert store.get(key(number)) == payload(number, 100)
        store.flush()  # what moves from the second tier to the third is in neither for a moment, and then a miss
    store.close()


def test_deleted_payload_is_nowhere(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for number in range(6):
        store.put(key(number), payload(number, 100))
    for number in range(6):
        store.delete(key(number))
    store.flush()

    assert not any(store.contains(key(number)) for number in range(6))
    assert {statistics.num_entries for statistics in store.statistics().values()} == {0}
    store.close()


def test_full_disk_costs_only_what_leaves_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def no_space(path: Path, pieces: Sequence[bytes]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk = DiskTier(tmp_path, 100_000, IDENTITY, write_file=no_space)
    store = TieredStore(MemoryTier(300), disk)
    for number in range(6):
        store.put(key(number), payload(number, 100))
    store.flush()

    assert [store.get(key(number)) is not None for number in range(6)] == [False] * 3 + [True] * 3
    store.close()
    assert len(caplog.records) == 1
    assert not store.statistics()["disk"].is_writable


class StuckTier:
    """A slow tier that does not come back from a write until it is told to."""

    name = "stuck"

    def __init__(self) -> None:
        self.may_pass = threading.Event()

    def get(self, key: bytes) -> bytes | None:  # noqa: ARG002  # the protocol's name
        return None

    def put(self, key: bytes, payload: bytes) -> list[Entry]:  # noqa: ARG002
        self.may_pass.wait()
        return []

    def contains(self, key: bytes) -> bool:  # noqa: ARG002
        return False

    def delete(self, key: bytes) -> None:
        pass

    def statistics(self) -> TierStatistics:
        return TierStatistics()


def test_put_returns_while_the_disk_hangs_and_memory_stays_bounded() -> None:
    stuck = StuckTier()
    store = TieredStore(MemoryTier(300), stuck, queue_bytes=500)

    for number in range(100):
        store.put(key(number), payload(number, 100))

    statistics = store.statistics()
    assert (statistics["memory"].used_bytes, statistics["queue"].used_bytes) == (300, 500)
    assert statistics["queue"].num_refused == 100 - 3 - 5
    assert not store.flush(timeout_s=0.01)
    store.close(timeout_s=0.01)
    assert store.statistics()["memory"].used_bytes == 0
    stuck.may_pass.set()


class Counted(bytes):
    """A payload that counts the bytes of all that are alive."""

    alive_bytes = 0
    peak_bytes = 0
    lock = threading.RLock()

    def __new__(cls, data: bytes):
        with cls.lock:
            cls.alive_bytes += len(data)
            cls.peak_bytes = max(cls.peak_bytes, cls.alive_bytes)
        return super().__new__(cls, data)

    def __del__(self) -> None:
        with Counted.lock:
            Counted.alive_bytes -= len(self)


def test_memory_that_is_really_alive_stays_within_the_budget_under_random_load(tmp_path: Path) -> None:
    """Counts live objects, whoever holds them, with four threads that put and get payloads of up to 400 bytes."""
    num_threads, largest = 4, 400
    store = new_store(tmp_path, memory_bytes=3000, queue_bytes=1500)
    Counted.alive_bytes = Counted.peak_bytes = 0
    wrong: list[int] = []

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(400):
            number = source.randrange(60)
            if source.random() < 0.5:
                store.put(key(number), Counted(payload(number)))
            elif store.get(key(number)) not in {None, payload(number)}:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_store = Counted.alive_bytes
    store.flush()  # a writer that got no time before has written something now
    wrong += [number for number in range(60) if store.get(key(number)) not in {None, payload(number)}]
    statistics = store.statistics()
    store.close()

    assert wrong == []
    # in hand of each thread: a payload that comes and what it drives out, which is less than itself and one more;
    # of the writer: one that has just been written
    in_hand = num_threads * 3 * largest + largest
    assert Counted.peak_bytes <= 3000 + 1500 + in_hand
    assert in_store <= 3000 + 1500 + largest
    assert statistics["memory"].used_bytes <= 3000
    assert statistics["disk"].num_errors == 0
    assert min(statistics[name].num_hits for name in ("memory", "disk")) > 0


def test_disk_holds_header_and_payload_of_what_left_memory(tmp_path: Path) -> None:
    store = new_store(tmp_path, memory_bytes=0)
    store.put(key(0), payload(0, 100))
    store.flush()

    assert store.statistics()["disk"].used_bytes == HEADER_BYTES + 100
    assert store.get(key(0)) == payload(0, 100)
    assert store.statistics()["queue"].num_refused == 0
    store.close()


def test_two_tiers_of_one_name_are_our_bug() -> None:
    tier: Tier = MemoryTier(1)

    with pytest.raises(InternalError, match="the same name"):
        TieredStore(MemoryTier(1), tier)


def test_what_is_deleted_while_it_is_read_does_not_get_into_memory() -> None:
    held = HeldTier({key(0): payload(0, 100), key(1): payload(1, 100)})
    store = TieredStore(MemoryTier(300), held)
    reads = [read_later(store, number) for number in range(2)]
    wait_until(lambda: len(held.asked) == 2)

    store.delete(key(0))
    held.may_read.set()

    assert [read.result() for read in reads] == [None, payload(1, 100)]
    assert [store.is_in_memory(key(number)) for number in range(2)] == [False, True]
    held.put(key(0), payload(0, 100))  # computed again
    assert store.get(key(0)) == payload(0, 100)
    store.close()


def test_closing_gives_up_on_a_read_that_hangs_and_nothing_comes_after_it() -> None:
    held = HeldTier({key(0): payload(0, 100)})
    store = TieredStore(MemoryTier(300), held)
    read = read_later(store, 0)
    wait_until(lambda: len(held.asked) == 1)

    store.close(timeout_s=0.01)
    held.may_read.set()

    assert read.result() is None
    assert store.statistics()["memory"].used_bytes == 0
    assert not store.run_in_reader(lambda: None)


def test_only_memory_and_what_leaves_it_is_in_memory() -> None:
    stuck = StuckTier()
    store = TieredStore(MemoryTier(100), stuck)
    for number in range(2):
        store.put(key(number), payload(number, 100))

    assert [store.is_in_memory(key(number)) for number in range(3)] == [True, True, False]
    stuck.may_pass.set()
    store.flush()
    assert [store.is_in_memory(key(number)) for number in range(2)] == [False, True]
    store.close()
