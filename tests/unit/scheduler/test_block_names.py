"""Pieces of memory that can be found by what they hold."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.block_pool import BlockPool


def named(size: int, *keys: bytes) -> BlockPool:
    """A pool whose first pieces have these names; all are free, and the first one was let go first."""
    pool = BlockPool(size)
    for block_id, key in zip(pool.allocate(len(keys)), keys, strict=True):
        assert pool.name(block_id, key)
        pool.release([block_id])
    return pool


def test_named_block_is_found_while_it_is_in_use_and_when_it_is_free() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.name(block, b"a")

    found_in_use = pool.find(b"a")
    pool.release([block])

    assert (found_in_use, pool.find(b"a"), pool.find(b"b")) == (block, block, None)
    assert (pool.num_free, pool.num_named) == (2, 1)


def test_blocks_without_a_name_are_given_out_first_and_then_the_one_that_was_used_longest_ago() -> None:
    pool = named(4, b"a", b"b", b"c")

    taken = pool.allocate(3)

    assert taken == [4, 1, 2]
    assert [pool.find(key) for key in (b"a", b"b", b"c")] == [None, None, 3]
    assert pool.num_evictions == 2


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block_id, key in zip(blocks, (b"1", b"12", b"123"), strict=True):
        pool.name(block_id, key)
    pool.release(blocks)

    pool.allocate(2)

    assert [pool.find(key) for key in (b"1", b"12", b"123")] == [1, None, None]


def test_touched_block_is_evicted_last() -> None:
    pool = named(3, b"a", b"b", b"c")

    pool.touch(1)

    assert pool.allocate(3) == [2, 3, 1]


def test_touching_what_is_in_use_changes_nothing() -> None:
    pool = BlockPool(1)
    [block] = pool.allocate(1)

    pool.touch(block)

    assert pool.num_free == 0


def test_free_named_block_can_be_shared_and_is_not_given_out_then() -> None:
    pool = named(2, b"a", b"b")

    pool.share([1])

    assert (pool.num_references(1), pool.num_free) == (1, 1)
    assert pool.allocate(1) == [2]
    pool.release([1])
    assert pool.find(b"a") == 1


def test_block_is_free_when_all_who_share_it_let_go() -> None:
    pool = named(1, b"a")
    pool.share([1])
    pool.share([1])

    pool.release([1])
    num_free_after_one = pool.num_free
    pool.release([1])

    assert (num_free_after_one, pool.num_free) == (0, 1)
    pool.require_all_free()


def test_second_block_with_the_same_contents_stays_without_a_name() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)

    assert (pool.name(first, b"a"), pool.name(second, b"a")) == (True, False)

    assert pool.find(b"a") == first
    pool.release([second])
    assert pool.allocate(1) == [second]


def test_block_that_was_given_out_again_can_get_another_name() -> None:
    pool = named(1, b"a")

    [block] = pool.allocate(1)
    pool.name(block, b"b")

    assert (pool.find(b"a"), pool.find(b"b")) == (None, block)


def test_naming_twice_breaks_an_invariant() -> None:
    pool = BlockPool(1, "snapshot", first=9)
    [slot] = pool.allocate(1)
    pool.name(slot, b"a")

    with pytest.raises(InternalError, match="snapshot 9 has a name already"):
        pool.name(slot, b"b")


@pytest.mark.parametrize("block_id", [0, 1, 2])
def test_naming_what_nobody_owns_breaks_an_invariant(block_id: int) -> None:
    with pytest.raises(InternalError, match="is not in use"):
        named(1, b"a").name(block_id, b"b")


def test_ids_begin_where_they_should() -> None:
    pool = BlockPool(2, first=7)

    assert pool.allocate(2) == [7, 8]
    with pytest.raises(InternalError, match=r"never released: \[7, 8\]"):
        pool.require_all_free()


def test_what_lost_its_name_is_not_found_and_stays_with_those_who_have_it() -> None:
    pool = named(3, b"a", b"b")
    pool.share([1])

    for key in (b"a", b"b", b"never named"):
        pool.unname(key)

    assert [pool.find(key) for key in (b"a", b"b")] == [None, None]
    assert (pool.num_named, pool.num_free, pool.num_references(1)) == (0, 2, 1)
    assert pool.allocate(2) == [3, 2]
    pool.release([1])
    assert pool.allocate(1) == [1]
    assert pool.num_evictions == 0


def test_every_change_of_a_name_is_told() -> None:
    told: list[bytes] = []
    pool = BlockPool(2)
    pool.on_change = told.append

    first, second = pool.allocate(2)
    pool.name(first, b"a")
    pool.name(second, b"b")
    pool.release([first, second])
    pool.allocate(1)
    pool.unname(b"a")

    assert told == [b"a", b"b", b"b", b"a"]
