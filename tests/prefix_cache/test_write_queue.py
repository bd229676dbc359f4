"""Payloads that wait to be written: in order, each once, never more bytes than allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from deepinfer_core.prefix_cache.write_queue import WriteQueue
from tests.prefix_cache.builders import key


class SlowDisk:
    """Lets a write pass when it is told to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_writing = threading.Semaphore(0)
        self.may_pass = threading.Semaphore(0)

    def write(self, _: bytes, payload: bytes) -> None:
        self.is_writing.release()
        self.may_pass.acquire()
        self.written.append(payload)


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.may_pass.release(1000)


def test_full_queue_drops_what_comes_and_says_so(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 10)

    taken = [queue.offer(key(number), b"12345") for number in range(3)]

    assert taken == [True, True, False]
    assert (queue.statistics().used_bytes, queue.statistics().num_refused) == (10, 1)


def test_payload_counts_and_can_be_found_until_it_is_written(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 10)
    queue.offer(key(0), b"123456")
    disk.is_writing.acquire()

    assert queue.get(key(0)) == b"123456"
    assert queue.contains(key(0))
    assert not queue.offer(key(1), b"123456")
    disk.may_pass.release()
    assert queue.flush()
    assert queue.get(key(0)) is None
    assert queue.statistics().used_bytes == 0


def test_offer_may_wait_for_room(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 10)
    queue.offer(key(0), b"123456")
    disk.may_pass.release(2)

    assert queue.offer(key(1), b"abcdef", timeout_s=None)
    queue.close()

    assert disk.written == [b"123456", b"abcdef"]


def test_payload_larger_than_the_queue_is_not_waited_for(disk: SlowDisk) -> None:
    assert not WriteQueue(disk.write, 10).offer(key(0), b"12345678901", timeout_s=None)


def test_two_who_wait_with_the_same_key_are_one_payload(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 12)
    queue.offer(key(0), b"0123456789")
    waiting = [threading.Thread(target=queue.offer, args=(key(1), b"abcdef", None)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    disk.may_pass.release(1)
    for thread in waiting:
        thread.join()

    assert queue.statistics().used_bytes == 6
    disk.may_pass.release(1)
    queue.close()
    assert disk.written == [b"0123456789", b"abcdef"]


def test_discarded_payload_is_not_written(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 100)
    queue.offer(key(0), b"first")
    disk.is_writing.acquire()
    queue.offer(key(1), b"second")

    queue.discard(key(1))
    disk.may_pass.release(2)
    queue.discard(key(0))  # waits, so that whoever deletes it on the disk comes after it was written
    queue.close()

    assert disk.written == [b"first"]


def test_close_writes_what_is_there_and_takes_nothing_more(disk: SlowDisk) -> None:
    queue = WriteQueue(disk.write, 100)
    for number in range(5):
        queue.offer(key(number), bytes([number]))
    disk.may_pass.release(5)

    queue.close()

    assert disk.written == [bytes([number]) for number in range(5)]
    assert not queue.offer(key(9), b"late", timeout_s=None)


def test_close_with_a_time_limit_drops_the_rest(disk: SlowDisk, caplog: pytest.LogCaptureFixture) -> None:
    queue = WriteQueue(disk.write, 100)
    for number in range(3):
        queue.offer(key(number), bytes([number]))
    disk.is_writing.acquire()

    queue.close(timeout_s=0.01)

    assert ["3 payloads were not written in time" in record.message for record in caplog.records] == [True]
    assert queue.statistics().num_entries == 1  # the one that the disk has in hand


def test_tier_that_breaks_its_promise_costs_one_payload(caplog: pytest.LogCaptureFixture) -> None:
    written = []

    def write(key: bytes, payload: bytes) -> None:
        if payload == b"bad":
            raise ZeroDivisionError
        written.append(payload)

    queue = WriteQueue(write, 100)
    queue.offer(key(0), b"bad")
    queue.offer(key(1), b"good")
    queue.close()

    assert written == [b"good"]
    assert queue.statistics().num_errors == 1
    assert len(caplog.records) == 1
