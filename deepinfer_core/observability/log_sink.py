"""One line in the log, now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event, Lock, Thread

from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.observability.log_line import LineMaker
from deepinfer_core.observability.records import EngineInfo, RequestStats, StatsEvent, StepStats

log = get_logger(__name__)


class LogSink:
    """Writes a line about what happened since the line before, at most one in each interval.

    An engine that has nothing to do brings no records, so a thread looks after the time: one more line says that rates
    fell to zero, and then there is silence until something happens.
    """

    def __init__(
        self,
        info: EngineInfo,
        interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = log.info,
        timer: bool = True,
    ) -> None:
        """Begin an interval.

        Args:
            info: About the engine.
            interval_s: Seconds between two lines, and over which rates are taken.
            clock: That of the engine, in monotonic seconds.
            write: Takes a line.
            timer: Look after the time in a thread; without one, call :meth:`tick`.

        Raises:
            ConfigError: The interval is no number of seconds above 0.
        """
        if not 0 < interval_s < math.inf:
            raise ConfigError(
                f"interval_s={interval_s!r} must be a number of seconds above 0", source="log of statistics"
            )
        self._interval_s, self._clock, self._write = interval_s, clock, write
        self._maker = LineMaker(info, interval_s)
        self._lock, self._closed = Lock(), Event()
        self._next = clock() + interval_s
        self._told_quiet = True
        self._thread = Thread(target=self._watch, name="deepinfer-stats-log", daemon=True) if timer else None
        if self._thread is not None:
            self._thread.start()

    def on_step(self, stats: StepStats) -> None:
        """Take note of a step."""
        with self._lock:
            self._maker.add_step(stats)
        self.tick()

    def on_request(self, stats: RequestStats) -> None:
        """Take note of a request that has ended."""
        with self._lock:
            self._maker.tally.add_request(stats)

    def on_event(self, event: StatsEvent) -> None:
        """Take note of an event."""
        with self._lock:
            self._maker.tally.add_event(event)

    def tick(self) -> None:
        """Write a line if it is time for one and there is something to say."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            self._next = now + self._interval_s
            is_quiet, told_quiet = self._maker.tally.is_empty, self._told_quiet
            self._told_quiet = is_quiet
            line = None if is_quiet and told_quiet else self._maker.line(now)
        if line is not None:
            self._write(line)

    def close(self) -> None:
        """Write what was not told yet, and end the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            line = None if self._maker.tally.is_empty else self._maker.line(self._clock())
        if line is not None:
            self._write(line)

    def _watch(self) -> None:
        while not self._closed.wait(self._interval_s):
            self.tick()
