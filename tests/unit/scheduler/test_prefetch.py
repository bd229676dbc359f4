"""Sequences whose payloads are on their way from a disk: others pass, for a while."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.prefix_cache.wanted import NOTHING, Choose, Wanted
from deepinfer_core.scheduler.prefix_search import snapshot_key
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason, Sequence, SequenceStatus
from tests.unit.scheduler.builders import BOUNDED, EXACT, ROOT, Tier, make_scheduler, planned, rows, run, step
from tests.unit.scheduler.test_prefix_lookups import queue, tokens

MAX_WAIT_S = 2.0


@dataclass(eq=False)
class Reading:
    """A fetch that gets on when a test says so."""

    disk: Disk
    choose: Choose
    wanted: Wanted = NOTHING
    is_over: bool = False
    is_closed: bool = False

    def look(self) -> None:
        self.wanted = self.choose(lambda key: key in self.disk.payloads or key in self.disk.files, self.disk.max_blocks)

    def bring(self, keys: Iterable[bytes]) -> None:
        self.disk.payloads.update((key, self.disk.files[key]) for key in keys if key in self.disk.files)

    def finish(self) -> None:
        """All comes."""
        self.look()
        self.bring(self.wanted.keys)
        self.is_over = True

    def close(self) -> None:
        self.is_closed = self.is_over = True


class Disk(Tier):
    """A tier in memory with ``files`` behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[bytes, bytes] = {}
        self.max_blocks = 100
        self.is_there = False
        self.begun: list[Reading] = []

    @property
    def last(self) -> Reading:
        return self.begun[-1]

    def fetch(self, choose: Choose) -> Reading | None:
        if not self.is_there:
            return None
        self.begun.append(Reading(self, choose))
        return self.last


def with_disk(num_blocks: int = 16, *, cache: PrefixCacheConfig = EXACT, **knobs: object) -> tuple[Scheduler, Disk]:
    """A scheduler that ran a prompt of three blocks, which only a disk has now, with the state at their end."""
    prefixes = replace(cache, max_wait_s=MAX_WAIT_S)
    scheduler, disk = make_scheduler(num_blocks, prefix_cache=prefixes, headroom_blocks=0, **knobs), Disk()
    scheduler.prefix_cache.attach(disk)
    first = run(scheduler, "first", tokens(3, 9))
    disk.save(scheduler)
    disk.files, disk.payloads, disk.is_there = disk.payloads, {}, True
    forget_on_device(scheduler, first)
    return scheduler, disk


def forget_on_device(scheduler: Scheduler, sequence: Sequence) -> None:
    """Take the names of its blocks and snapshots."""
    for key in sequence.block_keys:
        scheduler._memory.blocks.unname(key)
        scheduler.prefix_cache.snapshots.unname(snapshot_key(key))


def test_what_the_disk_has_is_asked_for_when_a_sequence_arrives_and_is_its_hit_when_it_has_come() -> None:
    scheduler, disk = with_disk()
    sequence = queue(scheduler, "a", tokens(3, 20))
    [reading] = disk.begun

    reading.finish()
    plan = step(scheduler)

    assert reading.wanted == Wanted(
        blocks=tuple(sequence.block_keys[:3]), snapshot=snapshot_key(sequence.block_keys[2]), num_tokens=384
    )
    assert rows(plan) == [("a", 384, 20)]
    assert {load.payload for load in plan.loads} == set(reading.wanted.keys)
    assert (reading.is_closed, len(disk.begun)) == (True, 1)
    assert scheduler.prefix_cache.counters.num_late == 0


def test_nothing_is_asked_for_what_the_device_has_or_what_is_too_short() -> None:
    scheduler, disk = with_disk()
    queue(scheduler, "a", tokens(3, 20))
    disk.last.finish()
    step(scheduler)
    disk.begun.clear()

    queue(scheduler, "again", tokens(3, 20))
    queue(scheduler, "short", tokens(0, 127))
    scheduler.add(Sequence(request_id="alone", prompt_token_ids=tokens(3), max_tokens=9))

    assert disk.begun == []


def test_those_behind_it_are_admitted_and_it_keeps_its_rank() -> None:
    scheduler, disk = with_disk()
    a = queue(scheduler, "a", tokens(3, 20))
    queue(scheduler, "b", tokens(0, 9))
    c = queue(scheduler, "c", tokens(1, 9, begins=5000))

    first = step(scheduler)
    disk.begun[1].finish()
    decode = step(scheduler)
    disk.begun[0].finish()
    last = step(scheduler)

    assert [request for request, *_ in rows(first)] == ["b"]
    assert [request for request, *_ in rows(decode)] == ["b"]
    assert [request for request, *_ in rows(last)] == ["a", "c"]
    assert a.rank < c.rank


def test_nobody_passes_a_sequence_that_waits_for_memory() -> None:
    scheduler, disk = with_disk(5)
    running = queue(scheduler, "running", tokens(0, 100, begins=3000), max_tokens=200)
    step(scheduler)
    large = queue(scheduler, "large", tokens(4, 9))
    queue(scheduler, "small", tokens(0, 9))
    disk.last.finish()

    plan = step(scheduler)

    assert (rows(plan), large.status) == ([("running", 100, 1)], SequenceStatus.WAITING)
    assert not running.is_finished


def test_a_step_in_which_everybody_waits_for_payloads_is_none() -> None:
    scheduler, disk = with_disk()
    queue(scheduler, "a", tokens(3, 20))

    assert [scheduler.plan(now) for now in (0.0, 1.0)] == [None, None]
    disk.last.finish()
    assert rows(planned(scheduler, 1.5)) == [("a", 384, 20)]


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_a_disk_that_hangs_delays_a_sequence_for_a_limited_time(is_looked_at: bool) -> None:
    scheduler, disk = with_disk()
    sequence = queue(scheduler, "a", tokens(3, 20))
    if is_looked_at:
        disk.last.look()

    before = [scheduler.plan(now) for now in (7.0, 7.0 + MAX_WAIT_S - 0.1)]
    plan = step(scheduler, 7.0 + MAX_WAIT_S)

    assert before == [None, None]
    assert rows(plan) == [("a", 0, 384)]
    assert rows(step(scheduler, 9.1)) == [("a", 384, 20)]
    assert not sequence.is_finished
    assert (disk.last.is_closed, len(disk.begun), scheduler.prefix_cache.counters.num_late) == (True, 1, 1)


def test_what_has_come_when_the_time_is_over_is_the_hit() -> None:
    scheduler, disk = with_disk(cache=BOUNDED)
    sequence = queue(scheduler, "a", tokens(3, 20))
    scheduler.plan(0.0)
    disk.last.look()
    disk.last.bring(sequence.block_keys[:2])

    plan = step(scheduler, MAX_WAIT_S)

    assert disk.last.wanted.num_tokens == 256
    assert [entry.start for entry in plan.entries] == [128]
    assert len(plan.loads) == 2


def test_time_counts_from_when_its_turn_has_come() -> None:
    scheduler, disk = with_disk(max_num_seqs=1)
    queue(scheduler, "running", tokens(0, 9), max_tokens=3)
    queue(scheduler, "a", tokens(3, 20))
    for now in (0.0, 10.0, 20.0):
        step(scheduler, now)

    assert scheduler.plan(30.0) is None
    assert scheduler.plan(31.0) is None
    assert rows(step(scheduler, 32.0)) == [("a", 0, 384)]
    assert disk.last.is_closed


@pytest.mark.parametrize("ends", ["abort", "deadline"])
def test_an_abort_or_a_deadline_ends_it_like_any_that_waits(ends: str) -> None:
    scheduler, disk = with_disk()
    sequence = Sequence(request_id="a", prompt_token_ids=tokens(3, 20), max_tokens=9, cache_root=ROOT, deadline=1.0)
    scheduler.add(sequence)
    assert scheduler.plan(0.5) is None

    if ends == "abort":
        scheduler.abort("a")
    assert scheduler.plan(1.0) is None

    assert sequence.finish_reason is (FinishReason.ABORT if ends == "abort" else FinishReason.TIMEOUT)
    assert disk.last.is_closed
    assert not scheduler.has_unfinished
    assert len(scheduler._batcher.prefetches) == 0
    scheduler.require_all_free()


def test_what_came_and_was_lost_again_is_asked_for_once_more() -> None:
    scheduler, disk = with_disk()
    queue(scheduler, "a", tokens(3, 20))
    disk.last.finish()
    disk.payloads.clear()

    again = scheduler.plan(0.0)
    first, second = disk.begun
    second.finish()
    disk.payloads.popitem()
    plan = step(scheduler, 1.0)

    assert (again, first.is_closed, len(disk.begun)) == (None, True, 2)
    assert rows(plan) == [("a", 0, 384)]


def test_what_the_device_lost_since_is_fetched_too() -> None:
    scheduler, disk = with_disk(max_num_seqs=1)
    first = queue(scheduler, "first", tokens(3, 20))
    disk.last.finish()
    step(scheduler)
    queue(scheduler, "a", tokens(3, 20, begins=1))
    first_asked = len(disk.begun)
    forget_on_device(scheduler, first)
    disk.payloads.clear()
    while not first.is_finished:
        step(scheduler)
        forget_on_device(scheduler, first)

    assert scheduler.plan(5.0) is None
    disk.last.finish()

    assert first_asked == 1
    assert rows(step(scheduler, 5.1)) == [("a", 384, 20)]


def test_no_more_is_chosen_than_memory_can_hold() -> None:
    scheduler, disk = with_disk(cache=BOUNDED)
    disk.max_blocks = 2
    sequence = queue(scheduler, "a", tokens(3, 20))

    disk.last.finish()
    plan = step(scheduler)

    assert disk.last.wanted.keys == tuple(sequence.block_keys[:2])
    assert [entry.start for entry in plan.entries] == [128]


def test_preempted_sequence_may_fetch_again() -> None:
    scheduler, disk = with_disk()
    sequence = queue(scheduler, "a", tokens(3, 20))
    disk.last.finish()
    step(scheduler)
    disk.payloads.clear()

    scheduler._batcher.preempt(sequence)
    forget_on_device(scheduler, sequence)
    assert scheduler.plan(1.0) is None
    disk.last.finish()

    assert len(disk.begun) == 2
    assert rows(step(scheduler, 1.1)) == [("a", 384, 21)]
    assert sequence.num_preemptions == 1
