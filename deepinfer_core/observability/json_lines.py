"""Every record as a line of JSON, for programs that look at a run afterwards."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.records import EngineInfo, RequestStats, StatsEvent, StepStats


class JsonLinesSink:
    """Writes to a file, first a line about the engine; ``record`` says what a line is.

    Lines of steps are in the file at the latest when the next request ends. When the file cannot be written any more
    the hub drops the sink.
    """

    def __init__(self, info: EngineInfo, file: Path, *, steps: bool = True) -> None:
        """Begin a file.

        Args:
            info: About the engine.
            file: Where to; what it holds is kept, and the lines come after it.
            steps: Write a line for every step, too.

        Raises:
            ConfigError: The file cannot be written.
        """
        self._steps = steps
        try:
            self._file = file.open("a", encoding="utf-8")
            self._write_first(info)
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written ({error.strerror}); give a file in a folder that exists and may be written "
                "to",
                source="JSON lines",
            ) from error

    def on_step(self, stats: StepStats) -> None:
        """Write a line."""
        if self._steps:
            self._write("step", stats)

    def on_request(self, stats: RequestStats) -> None:
        """Write a line and everything before it."""
        self._write("request", stats)
        self._file.flush()

    def on_event(self, event: StatsEvent) -> None:
        """Write a line and everything before it."""
        self._write("event", event)
        self._file.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()

    def _write_first(self, info: EngineInfo) -> None:
        try:
            self._write("engine", info)
            self._file.flush()
        except OSError:
            with suppress(OSError):  # closing tries to write once more
                self._file.close()
            raise

    def _write(self, record: str, content: object) -> None:
        line = {"record": record, **_fields(content)}
        self._file.write(json.dumps(line, separators=(",", ":"), default=_fields) + "\n")


def _fields(record: Any) -> dict[str, Any]:
    """A record as JSON takes it. Unlike ``dataclasses.asdict`` it copies no values, of which a step has hundreds."""
    return {field.name: getattr(record, field.name) for field in fields(record)}
