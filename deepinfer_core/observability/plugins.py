"""Sinks of other packages, as entry points."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.observability.records import EngineInfo
from deepinfer_core.observability.sink import StatsSink

if TYPE_CHECKING:
    from stevedore.driver import DriverManager

GROUP = "deepinfer.stats_sinks"
"""Entry-point group: each names something that makes a :class:`StatsSink` when it is called with an ``EngineInfo``."""


def _installed() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


def _driver(name: str, info: EngineInfo) -> DriverManager[StatsSink]:
    from stevedore.driver import DriverManager

    return DriverManager(GROUP, name, invoke_on_load=True, invoke_args=(info,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlugins:
    """Where sinks come from; tests pass their own entry points and drivers.

    Attributes:
        entry_points: Every entry point of the group, not loaded.
        driver: Imports the one that a name stands for and makes its sink.
    """

    entry_points: Callable[[], Iterable[importlib.metadata.EntryPoint]] = _installed
    driver: Callable[[str, EngineInfo], DriverManager[StatsSink]] = _driver

    def names(self) -> tuple[str, ...]:
        """What is installed, sorted; nothing is imported."""
        return tuple(sorted({point.name for point in self.entry_points()}))

    def open(self, names: Sequence[str], info: EngineInfo) -> tuple[StatsSink, ...]:
        """Make the sinks of these names, in this order.

        Raises:
            ConfigError: A name is not installed, installed twice, or what it names does not work; all are listed, and
                those that were made are closed.
        """
        sinks: list[StatsSink] = []
        problems: list[str] = []
        for name in names:
            try:
                sinks.append(self._open(name, info))
            except ConfigError as error:
                problems += error.problems
        if problems:
            for sink in sinks:
                sink.close()
            raise ConfigError(problems, source="stats sinks")
        return tuple(sinks)

    def _open(self, name: str, info: EngineInfo) -> StatsSink:
        offers = [point for point in self.entry_points() if point.name == name]
        if not offers:
            installed = self.names()
            listed = ", ".join(installed) or "none"
            raise ConfigError(f"no installed package offers {name!r}; installed: {listed}{nearest(name, installed)}")
        if len(offers) > 1:
            raise ConfigError(f"{name!r} is offered by {len(offers)} packages; uninstall all but one")
        try:
            return cast("StatsSink", self.driver(name, info).driver)
        except Exception as error:  # the code of others: whatever is wrong with it is told
            raise ConfigError(f"{name!r} is installed but does not work: {type(error).__name__}: {error}") from error
