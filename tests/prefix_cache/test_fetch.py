"""Payloads of prompts are read by the threads of a store, as many as fit into memory, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from deepinfer_core.prefix_cache.fetch import Fetch, Fetcher
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tiered_store import TieredStore
from deepinfer_core.prefix_cache.wanted import NOTHING, Choose, Wanted
from tests.prefix_cache.builders import key, payload
from tests.prefix_cache.slow import HeldTier, wait_until

BLOCK, SNAPSHOT = 100, 50
CAPACITY = 10 * BLOCK + SNAPSHOT


def blocks(*numbers: int, snapshot: int | None = None) -> Choose:
    """Chooses these, as far as they are there and fit."""

    def choose(contains: Callable[[bytes], bool], max_blocks: int) -> Wanted:
        there = [key(number) for number in numbers if contains(key(number))][:max_blocks]
        return Wanted(blocks=tuple(there), snapshot=None if snapshot is None else key(snapshot), num_tokens=1)

    return choose


class Rig:
    """A fetcher over a store whose slow tier has 40 blocks, and a snapshot with the number 99."""

    def __init__(self) -> None:
        self.tier = HeldTier({key(number): payload(number, BLOCK) for number in range(40)})
        self.tier.payloads[key(99)] = payload(99, SNAPSHOT)
        self.store = TieredStore(MemoryTier(CAPACITY), self.tier)
        self.fetcher = Fetcher(self.store, capacity_bytes=CAPACITY, block_bytes=BLOCK, snapshot_bytes=SNAPSHOT)

    def in_memory(self, *numbers: int) -> list[bool]:
        return [self.store.is_in_memory(key(number)) for number in numbers]

    def looked(self, fetch: Fetch) -> None:
        """Wait until it is known what a fetch wants."""
        self.tier.may_look.set()
        wait_until(lambda: fetch.wanted is not NOTHING or fetch.is_over)

    def fetch_until_full(self) -> tuple[Fetch, Fetch, Fetch]:
        """One that has come, one for which there is no room, and one that would fit but is not the next."""
        self.tier.may_look.set()
        self.tier.may_read.set()
        first = self.fetcher.fetch(blocks(*range(6)))
        wait_until(lambda: first.is_over)
        second = self.fetcher.fetch(blocks(*range(10, 16)))
        self.looked(second)
        third = self.fetcher.fetch(blocks(20))
        self.looked(third)
        return first, second, third


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.tier.may_look.set()
    made.tier.may_read.set()
    made.store.close()


def test_nothing_is_waited_for_and_all_comes_in_the_end(rig: Rig) -> None:
    fetch = rig.fetcher.fetch(blocks(*range(10), snapshot=99))
    before = fetch.wanted, fetch.is_over
    rig.looked(fetch)
    while_reading = fetch.is_over, rig.in_memory(*range(10), 99)

    rig.tier.may_read.set()
    wait_until(lambda: fetch.is_over)

    assert before == (NOTHING, False)
    assert while_reading == (False, [False] * 11)
    assert rig.in_memory(*range(10), 99) == [True] * 11
    assert [rig.store.get_from_memory(key(number)) for number in (0, 9)] == [payload(0, BLOCK), payload(9, BLOCK)]
    assert set(fetch.wanted.keys) == set(rig.tier.asked)


def test_what_is_in_memory_already_is_not_read_and_is_not_driven_out(rig: Rig) -> None:
    rig.tier.may_look.set()
    rig.tier.may_read.set()
    for number in (0, 30, 31, 32):
        rig.store.put(key(number), payload(number, BLOCK))

    fetch = rig.fetcher.fetch(blocks(*range(10)))
    wait_until(lambda: fetch.is_over)

    assert rig.in_memory(*range(10)) == [True] * 10
    assert key(0) not in rig.tier.asked


def test_nothing_to_read_is_over_at_once(rig: Rig) -> None:
    rig.tier.may_look.set()

    fetch = rig.fetcher.fetch(lambda contains, max_blocks: NOTHING)
    wait_until(lambda: fetch.is_over)

    assert rig.tier.asked == []


def test_choice_is_told_how_much_fits(rig: Rig) -> None:
    rig.tier.may_look.set()
    rig.tier.may_read.set()

    fetch = rig.fetcher.fetch(blocks(*range(40), snapshot=99))
    wait_until(lambda: fetch.is_over)

    assert fetch.wanted.blocks == tuple(key(number) for number in range(10))
    assert rig.in_memory(*range(10), 99) == [True] * 11


def test_what_would_not_fit_after_all_is_not_read(rig: Rig) -> None:
    wanted = Wanted(blocks=tuple(key(number) for number in range(11)), num_tokens=1)

    fetch = rig.fetcher.fetch(lambda contains, max_blocks: wanted)
    wait_until(lambda: fetch.is_over)

    assert (fetch.wanted, rig.tier.asked) == (NOTHING, [])


def test_fetches_wait_for_room_in_memory_in_their_order(rig: Rig) -> None:
    first, second, third = rig.fetch_until_full()
    while_full = second.is_over, third.is_over, rig.in_memory(*range(6))

    first.close()
    wait_until(lambda: second.is_over and third.is_over)

    assert while_full == (False, False, [True] * 6)
    assert rig.tier.asked[:6] == [key(number) for number in range(6)]
    assert rig.in_memory(*range(10, 16), 20) == [True] * 7


def test_a_fetch_that_is_given_up_while_it_waits_for_room_lets_the_next_one_begin(rig: Rig) -> None:
    _, second, third = rig.fetch_until_full()
    is_third_over = third.is_over

    second.close()
    wait_until(lambda: third.is_over)

    assert not is_third_over
    assert rig.in_memory(10, 20) == [False, True]


def test_closing_ends_the_reads_and_gives_the_room_back_once(rig: Rig) -> None:
    fetch = rig.fetcher.fetch(blocks(*range(10)))
    rig.looked(fetch)
    wait_until(lambda: len(rig.tier.asked) == 2)  # one thread for each eight keys
    fetch.close()
    fetch.close()
    rig.tier.may_read.set()
    wait_until(lambda: not rig.store._running)
    next_one = rig.fetcher.fetch(blocks(*range(20, 30)))
    wait_until(lambda: next_one.is_over)

    asked = [number for number in range(10) if key(number) in rig.tier.asked]
    assert len(asked) == 2
    assert rig.in_memory(*range(20, 30)) == [True] * 10
    assert rig.fetcher._free_bytes == CAPACITY - 10 * BLOCK


def test_closing_before_anything_is_known_reads_nothing(rig: Rig) -> None:
    fetch = rig.fetcher.fetch(blocks(*range(10)))
    fetch.close()
    rig.tier.may_look.set()
    last = rig.fetcher.fetch(lambda contains, max_blocks: NOTHING)
    wait_until(lambda: last.is_over)

    wait_until(lambda: not rig.store._running)
    assert (rig.tier.asked, rig.fetcher._free_bytes) == ([], CAPACITY)


def test_a_tier_that_breaks_its_promise_is_a_miss(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def choose(contains: Callable[[bytes], bool], max_blocks: int) -> Wanted:
        raise OSError("the tier fell over")

    fetch = rig.fetcher.fetch(choose)
    wait_until(lambda: fetch.is_over)

    assert fetch.wanted is NOTHING
    assert "the tier fell over" in caplog.text


def test_a_closed_store_fetches_nothing(rig: Rig) -> None:
    rig.store.close()

    assert rig.fetcher.fetch(blocks(0)).is_over
