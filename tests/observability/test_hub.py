"""Records reach every sink, and a sink that fails harms nobody."""

from __future__ import annotations

import logging

import pytest

from deepinfer_core.observability.records import StatsEvent, StepStats
from deepinfer_core.observability.sink import StatsHub
from tests.observability.sample import Broken, Recorder, request, step

EVENT = StatsEvent(name="step_failed", time_s=1.0)


def test_every_sink_gets_every_record_in_order() -> None:
    sinks = Recorder(), Recorder()
    hub = StatsHub(sinks)
    records = [step(), request(), EVENT, step(time_s=101.0)]

    hub.on_step(records[0])
    hub.on_request(records[1])
    hub.on_event(records[2])
    hub.on_step(records[3])

    assert [sink.records for sink in sinks] == [records, records]


def test_a_sink_that_raises_is_logged_once_closed_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    before, broken, after = Recorder(), Broken(), Recorder()
    hub = StatsHub((before, broken, after))

    with caplog.at_level(logging.ERROR, logger="deepinfer"):
        for _ in range(3):
            hub.on_step(step())
        hub.on_request(request())

    assert len(before.records) == len(after.records) == 4
    assert len(broken.records) == 1
    assert broken.num_closed == 1
    assert hub.sinks == (before, after)
    told = [record.message for record in caplog.records]
    assert len([line for line in told if "Broken failed and gets no more records" in line]) == 1
    assert len([line for line in told if "failed when it was closed" in line]) == 1


def test_an_interrupt_is_no_failure_of_a_sink() -> None:
    class Interrupted(Recorder):
        def on_step(self, stats: StepStats) -> None:
            super().on_step(stats)
            raise KeyboardInterrupt

    hub = StatsHub((Interrupted(),))

    with pytest.raises(KeyboardInterrupt):
        hub.on_step(step())
    assert hub.is_active


def test_hub_is_active_while_somebody_listens() -> None:
    sink = Recorder()
    hub = StatsHub((sink,))
    assert hub.is_active
    assert not StatsHub().is_active

    hub.close()
    hub.close()
    hub.on_step(step())

    assert not hub.is_active
    assert sink.num_closed == 1
    assert sink.records == []
