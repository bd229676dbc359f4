"""The hub of an engine, with the sinks that its settings ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.json_lines import JsonLinesSink
from deepinfer_core.observability.log_sink import LogSink
from deepinfer_core.observability.plugins import SinkPlugins
from deepinfer_core.observability.prometheus import PrometheusSink
from deepinfer_core.observability.records import EngineInfo
from deepinfer_core.observability.sink import StatsHub, StatsSink


def open_hub(
    info: EngineInfo,
    *,
    log_stats_interval_s: float = 0.0,
    metrics: bool = False,
    metrics_vllm_names: bool = False,
    stats_file: str = "",
    stats_sinks: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
    plugins: SinkPlugins | None = None,
) -> StatsHub:
    """Make sinks and their hub.

    Args:
        info: About the engine.
        log_stats_interval_s: Seconds between two lines in the log; 0 for none.
        metrics: Count for a page of metrics.
        metrics_vllm_names: Show metrics under vLLM's names, too.
        stats_file: Append every record to this file; "" for none.
        stats_sinks: Names of sinks of other packages.
        clock: That of the engine, in monotonic seconds.
        plugins: Where sinks of other packages come from, unless they are those that are installed.

    Raises:
        ConfigError: Something is wrong; all problems are listed, and nothing stays open.
    """
    makers: list[Callable[[], Sequence[StatsSink]]] = []
    if log_stats_interval_s:
        makers.append(lambda: [LogSink(info, log_stats_interval_s, clock=clock)])
    if metrics:
        makers.append(lambda: [PrometheusSink(info, vllm_names=metrics_vllm_names)])
    if stats_file:
        makers.append(lambda: [JsonLinesSink(info, Path(stats_file))])
    makers.append(lambda: (plugins or SinkPlugins()).open(stats_sinks, info))
    sinks: list[StatsSink] = []
    problems: list[str] = []
    for make in makers:
        try:
            sinks += make()
        except ConfigError as error:
            problems += error.problems
    hub = StatsHub(sinks)
    if problems:
        hub.close()
        raise ConfigError(problems, source="statistics")
    return hub


def metrics_page(hub: StatsHub) -> bytes | None:
    """The page of the hub's Prometheus sink; None when it has none."""
    pages = (sink.page() for sink in hub.sinks if isinstance(sink, PrometheusSink))
    return next(pages, None)
