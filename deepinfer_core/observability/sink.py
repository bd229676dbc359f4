"""What receives an engine's records, and the hub that hands them round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from deepinfer_core.logging import get_logger
from deepinfer_core.observability.records import RequestStats, StatsEvent, StepStats

log = get_logger(__name__)


class StatsSink(Protocol):
    """Takes records in the engine's thread, between two steps: what it does there should take microseconds."""

    def on_step(self, stats: StepStats) -> None:
        """Take note of a step."""
        ...

    def on_request(self, stats: RequestStats) -> None:
        """Take note of a request that has ended."""
        ...

    def on_event(self, event: StatsEvent) -> None:
        """Take note of an event."""
        ...

    def close(self) -> None:
        """Give back what it holds; nothing comes after this."""
        ...


class StatsHub:
    """Hands every record to every sink. A sink that raises is told about in the log, closed and dropped.

    Belongs to the thread of the engine.
    """

    def __init__(self, sinks: Iterable[StatsSink] = ()) -> None:
        self._sinks: tuple[StatsSink, ...] = tuple(sinks)

    @property
    def is_active(self) -> bool:
        """False when nobody listens: then records need not be made."""
        return bool(self._sinks)

    @property
    def sinks(self) -> tuple[StatsSink, ...]:
        """Those that have not failed."""
        return self._sinks

    def on_step(self, stats: StepStats) -> None:
        """Hand a record to every sink; never raises."""
        self._each(lambda sink: sink.on_step(stats))

    def on_request(self, stats: RequestStats) -> None:
        """Hand a record to every sink; never raises."""
        self._each(lambda sink: sink.on_request(stats))

    def on_event(self, event: StatsEvent) -> None:
        """Hand a record to every sink; never raises."""
        self._each(lambda sink: sink.on_event(event))

    def close(self) -> None:
        """Close every sink and forget them; never raises, and more calls do nothing."""
        sinks, self._sinks = self._sinks, ()
        for sink in sinks:
            self._close(sink)

    def _each(self, call: Callable[[StatsSink], None]) -> None:
        for sink in self._sinks:
            try:
                call(sink)
            except Exception:  # whatever is wrong with a sink is no matter of the requests
                log.exception("the stats sink %s failed and gets no more records", _name(sink))
                self._sinks = tuple(other for other in self._sinks if other is not sink)
                self._close(sink)

    def _close(self, sink: StatsSink) -> None:
        try:
            sink.close()
        except Exception:
            log.exception("the stats sink %s failed when it was closed", _name(sink))


def _name(sink: StatsSink) -> str:
    return f"{type(sink).__module__}.{type(sink).__qualname__}"
