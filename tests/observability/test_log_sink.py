"""The line in the log, with a clock that only moves when it is told to."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.log_sink import LogSink
from deepinfer_core.observability.records import CompletionStats, StatsEvent
from deepinfer_core.outputs import DraftMetrics
from tests.observability.sample import INFO, request, step


class Scene:
    """A sink with interval 10, its clock and what it wrote."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[str] = []
        self.sink = LogSink(INFO, 10.0, clock=lambda: self.now, write=self.lines.append, timer=False)

    def step(self, now: float, **fields: Any) -> None:
        self.now = now
        self.sink.on_step(step(time_s=now, **fields))


def test_line_has_rates_state_and_what_happened() -> None:
    scene = Scene()
    scene.step(
        101.0,
        kind="prefill",
        num_rows=96,
        num_padded_rows=4,
        num_prompt_tokens=96,
        prefix_queries={"device": 128},
        prefix_hits={"device": 32},
        first_token_s=(0.25, 0.75),
        device_idle_s=0.001,
    )
    scene.step(106.0, num_wasted_rows=2, num_preemptions=1)
    scene.sink.on_request(request())
    scene.sink.on_request(request(CompletionStats(finish_reason="abort", num_tokens=1), num_prompt_tokens=20))
    scene.sink.on_event(StatsEvent(name="step_failed", time_s=107.0))
    scene.step(111.0, num_running=2, num_waiting={"capacity": 3, "grammar": 0}, inter_token_s=(5.0,))

    assert scene.lines == [
        "engine 3: decode, 0.2 steps/s; tokens/s: prompt 0.0, output 0.8; running 2, waiting 3 (3 for capacity); "
        "cache 25.0%, state 50.0%; rows/step 34.7 (3.5% of 1000), padded 3.7%, wasted 1.9%; "
        "ms/step: plan 1.00, launch 2.00, wait 6.00, apply 1.00; prefill 33.3% of the time; "
        "device idle 0.333 ms/step; prefix hits 25.0%; TTFT ms: mean 500.0, max 750.0; "
        "ended 2 (mean 15.0 in, 3.0 out), 1 aborted; preempted 1; step_failed 1"
    ]


def test_line_tells_how_drafts_fared_since_the_line_before() -> None:
    scene = Scene()
    scene.step(101.0, drafts=DraftMetrics(num_blocks=2, num_proposed=10, verified=(2, 2, 1), accepted=(2, 1, 0)))
    scene.step(111.0, drafts=DraftMetrics(num_blocks=1, num_proposed=5, verified=(1,), accepted=(1,)))
    scene.step(121.0, drafts=DraftMetrics(num_blocks=2, verified=(2, 2), accepted=(0, 0)))
    scene.step(131.0, drafts=DraftMetrics(num_proposed=5))

    parts = [[part for part in line.split("; ") if part.startswith("drafts")] for line in scene.lines]
    assert parts == [
        ["drafts: accepted 4 of 6 (66.7%), length 2.33"],
        ["drafts: accepted 0 of 4 (0.0%), length 1.00"],
        [],
    ]


def test_a_line_tells_what_came_since_the_line_before() -> None:
    scene = Scene()
    for second in range(1, 25):
        scene.step(100.0 + second)
        if second == 12:
            scene.sink.on_request(request())

    assert len(scene.lines) == 2
    assert "ended" not in scene.lines[0]
    assert "ended 1 (mean 10.0 in, 5.0 out), 0 aborted" in scene.lines[1]
    assert all("1.0 steps/s; tokens/s: prompt 0.0, output 4.0" in line for line in scene.lines)


def test_an_idle_engine_says_so_once() -> None:
    scene = Scene()
    scene.sink.tick()
    scene.now = 130.0
    scene.sink.tick()
    assert scene.lines == []

    for now in (131.0, 132.0, 133.0):
        scene.step(now)
    scene.sink.on_step(step(time_s=133.5, kind="idle", num_running=0, num_used_blocks=0, num_used_state_slots=0))
    for now in (141.0, 151.0, 161.0, 171.0):
        scene.now = now
        scene.sink.tick()

    assert len(scene.lines) == 2
    assert scene.lines[0].startswith("engine 3: decode, 0.2 steps/s; tokens/s: prompt 0.0, output 0.8; running 0")
    assert scene.lines[1] == (
        "engine 3: idle, 0.0 steps/s; tokens/s: prompt 0.0, output 0.0; running 0, waiting 0; cache 0.0%, state 0.0%"
    )


def test_closing_tells_the_rest() -> None:
    scene = Scene()
    scene.sink.on_request(request())

    scene.sink.close()
    scene.sink.close()

    assert scene.lines == [
        "engine 3: idle, 0.0 steps/s; tokens/s: prompt 0.0, output 0.0; ended 1 (mean 10.0 in, 5.0 out), 0 aborted"
    ]


def test_the_timer_writes_without_records_and_ends_with_the_sink() -> None:
    written = threading.Event()
    sink = LogSink(INFO, 0.001, write=lambda line: written.set())
    sink.on_request(request())

    assert written.wait(30)
    sink.close()
    assert "deepinfer-stats-log" not in {thread.name for thread in threading.enumerate()}


def test_lines_go_to_the_log_of_the_project(caplog: pytest.LogCaptureFixture) -> None:
    sink = LogSink(INFO, 10.0, timer=False)
    sink.on_request(request())

    with caplog.at_level(logging.INFO, logger="deepinfer"):
        sink.close()

    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("deepinfer.observability.log_sink", "INFO")
    ]


@pytest.mark.parametrize("interval", [0, -1, math.inf, math.nan])
def test_an_interval_that_never_ends_is_refused(interval: float) -> None:
    make: Callable[[], LogSink] = lambda: LogSink(INFO, interval)  # noqa: E731

    with pytest.raises(ConfigError, match=r"interval_s=.* must be a number of seconds above 0"):
        make()
