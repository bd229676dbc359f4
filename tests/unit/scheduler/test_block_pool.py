"""Reference-counted pieces of memory."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.block_pool import BlockPool


def test_the_dummy_is_never_given_out() -> None:
    assert BlockPool(3).allocate(3) == [1, 2, 3]


def test_what_was_freed_last_is_reused_last() -> None:
    pool = BlockPool(4)
    first = pool.allocate(2)

    pool.release(first)

    assert pool.allocate(4) == [3, 4, 2, 1]


def test_shared_block_is_free_after_the_last_release() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.share(blocks)

    pool.release(blocks)
    num_free_after_one = pool.num_free
    pool.release(blocks)

    assert (num_free_after_one, pool.num_free) == (0, 1)


def test_allocating_more_than_there_is_breaks_an_invariant_and_takes_nothing() -> None:
    pool = BlockPool(2)

    with pytest.raises(InternalError, match="3 blocks were taken, but 2 are free"):
        pool.allocate(3)

    assert pool.num_free == 2


def test_double_free_breaks_an_invariant() -> None:
    pool = BlockPool(2, "state slot")
    slots = pool.allocate(1)
    pool.release(slots)

    with pytest.raises(InternalError, match="state slot 1 is not in use"):
        pool.release(slots)


@pytest.mark.parametrize("block_id", [-1, 0, 1, 3])
def test_sharing_what_nobody_owns_breaks_an_invariant(block_id: int) -> None:
    with pytest.raises(InternalError, match="is not in use"):
        BlockPool(2).share([block_id])


def test_leak_is_named() -> None:
    pool = BlockPool(5)
    pool.allocate(2)

    with pytest.raises(InternalError, match=r"2 blocks were never released: \[1, 2\]"):
        pool.require_all_free()
