"""Host memory: order of leaving, and never a byte too many."""

from __future__ import annotations

import random

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from tests.prefix_cache.builders import key, payload


def test_what_was_used_longest_ago_leaves_first() -> None:
    tier = MemoryTier(30)
    for number in range(3):
        tier.put(key(number), payload(number, 10))
    tier.get(key(0))

    left = tier.put(key(3), payload(3, 15))

    assert left == [(key(1), payload(1, 10)), (key(2), payload(2, 10))]
    assert [tier.contains(key(number)) for number in range(4)] == [True, False, False, True]


def test_contains_is_neither_a_use_nor_counted() -> None:
    tier = MemoryTier(20)
    tier.put(key(0), payload(0, 10))
    tier.put(key(1), payload(1, 10))

    tier.contains(key(0))
    left = tier.put(key(2), payload(2, 10))

    assert left == [(key(0), payload(0, 10))]
    assert tier.statistics().num_queries == 0


def test_payload_larger_than_the_tier_comes_back_and_drives_nothing_out() -> None:
    tier = MemoryTier(10)
    tier.put(key(0), payload(0, 10))

    assert tier.put(key(1), payload(1, 11)) == [(key(1), payload(1, 11))]
    assert tier.get(key(0)) == payload(0, 10)
    assert tier.statistics().num_refused == 1


def test_putting_a_key_again_replaces_it() -> None:
    tier = MemoryTier(10)
    tier.put(key(0), b"old")

    assert tier.put(key(0), b"new and more") == [(key(0), b"new and more")]
    assert (tier.get(key(0)), tier.statistics().used_bytes) == (None, 0)


def test_statistics_and_delete() -> None:
    tier = MemoryTier(10)
    tier.put(key(0), b"1234")
    tier.put(key(1), b"12345678")
    tier.get(key(0))
    tier.get(key(1))
    before = tier.statistics()
    tier.delete(key(1))
    tier.delete(key(7))

    counts = (before.num_queries, before.num_hits, before.num_evictions, before.num_entries, before.used_bytes)
    assert counts == (2, 1, 1, 1, 8)
    assert (tier.statistics().num_entries, tier.statistics().used_bytes) == (0, 0)


def test_random_load_stays_within_the_capacity_and_loses_nothing_unsaid() -> None:
    tier = MemoryTier(1000)
    inside: set[int] = set()
    numbers = {key(number): number for number in range(50)}
    for _ in range(5000):
        number = random.randrange(50)
        if random.random() < 0.1:
            tier.delete(key(number))
            inside.discard(number)
        elif random.random() < 0.4:
            found = tier.get(key(number))
            assert found == (payload(number) if number in inside else None)
        else:
            left = tier.put(key(number), payload(number))
            inside = (inside | {number}) - {numbers[gone] for gone, _ in left}
        statistics = tier.statistics()
        assert statistics.used_bytes <= 1000
        assert statistics.used_bytes == sum(len(payload(number)) for number in inside)


def test_negative_capacity_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_bytes=-1"):
        MemoryTier(-1)
