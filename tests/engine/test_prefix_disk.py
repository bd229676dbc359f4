"""An engine with prefixes on a real disk, which a test can hold up: nobody but its own request waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.errors import ConfigError
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from tests.engine.conftest import MakeEngine

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, ignore_eos=True)
PREFIX = [5 + (place * 7) % 900 for place in range(300)]
WAIT_S = 1.0
_NAPS_BEFORE = 5


class Held:
    """Holds up every look at the disk, and notes which threads took one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.may_pass = threading.Event()
        self.threads: set[str] = set()
        for name in ("get", "contains"):
            patch.setattr(DiskTier, name, self._wrap(getattr(DiskTier, name)))

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def held(tier: DiskTier, key: bytes) -> Any:
            self.threads.add(threading.current_thread().name.rstrip("0123456789"))
            assert self.may_pass.wait(60.0)
            return method(tier, key)

        return held


class Time:
    """A clock that only naps move on; a nap may do something else too."""

    def __init__(self, at_nap: Callable[[int], None] = lambda number: None) -> None:
        self.now = 100.0
        self.num_naps = 0
        self._at_nap = at_nap

    def clock(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += seconds
        self.num_naps += 1
        self._at_nap(self.num_naps)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "prefix_cache": "exact",
        "prefix_memory_gib": 0.01,
        "prefix_disk": str(tmp_path),
        "prefix_disk_gib": 0.1,
        "prefix_disk_wait_s": WAIT_S,
    }


@pytest.fixture
def cold(make_engine: MakeEngine, opened_invariant: OpenedModel, settings: dict[str, Any]) -> Any:
    """The answer of an engine that had nothing, and left its prefix on the warm.disk."""
    engine = make_engine(opened_invariant, **settings)
    [found] = answers(engine, PREFIX).values()
    engine.close()
    return found


@dataclass(frozen=True)
class Warm:
    """A disk that has a prefix and is held up.

    Attributes:
        disk: Lets it go.
        cold: The answer of the engine that left the prefix there.
        start: Makes an engine whose time passes as a test wants.
    """

    disk: Held
    cold: Any
    start: Callable[[Time], Engine]


@pytest.fixture
def warm(
    make_engine: MakeEngine,
    opened_invariant: OpenedModel,
    settings: dict[str, Any],
    cold: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Warm:
    def start(passing: Time) -> Engine:
        return make_engine(opened_invariant, clock=passing.clock, nap=passing.nap, **settings)

    return Warm(Held(monkeypatch), cold, start)


def answers(engine: Engine, *prompts: list[int]) -> dict[str, Any]:
    """Tokens and log-probabilities of requests that come together, in the order in which they end."""
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, GREEDY)
    ended = [record for record in engine.run() if record.finished]
    return {record.request_id: (record.outputs[0].token_ids, record.outputs[0].logprobs) for record in ended}


def all_has_come(engine: Engine) -> bool:
    """Whether nothing that was asked for is still on its way."""
    pending = engine.scheduler._batcher.prefetches._pending.values()
    return all(one.fetch is not None and one.fetch.is_over for one in pending)


def test_payloads_that_come_late_are_a_hit_with_the_bits_of_a_cold_run(warm: Warm) -> None:

    def let_go(number: int) -> None:
        if number == _NAPS_BEFORE:
            warm.disk.may_pass.set()
            end = time.monotonic() + 60.0
            while not all_has_come(engine):
                assert time.monotonic() < end
                time.sleep(0.001)

    passing = Time(let_go)
    engine = warm.start(passing)
    [found] = answers(engine, PREFIX).values()

    assert found == warm.cold
    assert passing.num_naps == _NAPS_BEFORE
    assert engine.scheduler.prefix_cache.counters.num_outer_tokens == 256
    assert engine.scheduler.prefix_cache.counters.num_late == 0
    assert warm.disk.threads == {"prefix-cache-reader_"}
    engine.close()


def test_a_disk_that_hangs_delays_its_request_and_no_other(warm: Warm) -> None:
    passing = Time()
    engine = warm.start(passing)

    found = answers(engine, PREFIX, PREFIX[:100])

    assert list(found) == ["1", "0"]
    assert found["0"] == warm.cold
    assert passing.now >= 100.0 + WAIT_S
    assert engine.scheduler.prefix_cache.counters.num_hit_tokens == 0
    assert engine.scheduler.prefix_cache.counters.num_late == 1
    assert warm.disk.threads == {"prefix-cache-reader_"}
    warm.disk.may_pass.set()
    engine.close()


def test_a_request_that_is_given_up_while_it_waits_for_the_disk_ends_at_once(warm: Warm) -> None:
    passing = Time()
    engine = warm.start(passing)
    engine.add("given up", PREFIX, GREEDY)
    engine.add("late", PREFIX, GREEDY, timeout_s=0.002)
    assert engine.step() == []

    engine.abort("given up")
    ended = {record.request_id: record.outputs[0].finish_reason for record in engine.step() if record.finished}

    assert ended == {"given up": "abort", "late": "timeout"}
    assert not engine.has_unfinished
    warm.disk.may_pass.set()
    engine.close()


def test_a_disk_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix_memory_gib is 0"):
        EngineConfig(model="tiny", prefix_cache="exact", prefix_disk="/somewhere")


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), True, "1"])
def test_wait_for_the_disk_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"prefix_disk_wait_s=.* must be a number of seconds, 0 or more"):
        EngineConfig(model="tiny", prefix_disk_wait_s=value)


def test_wait_for_the_disk_reaches_the_scheduler() -> None:
    config = EngineConfig(model="tiny", prefix_cache="exact", prefix_disk_wait_s=0.5)

    assert config.prefixes(128).max_wait_s == 0.5
