"""A page of metrics in the text format of Prometheus."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, cast

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability import metrics, vllm_names
from deepinfer_core.observability.metric_values import Histogram, MetricValues, Series
from deepinfer_core.observability.records import EngineInfo, RequestStats, StatsEvent, StepStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of a page, for who serves it over HTTP."""


def require_prometheus() -> None:
    """Raise unless a page can be made.

    Raises:
        ConfigError: prometheus-client is not installed; says what to install.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "metrics need prometheus-client, which is not installed: pip install 'deepinfer-core[metrics]' "
            "(from a checkout: pip install '.[metrics]')",
            source="metrics",
        )


class PrometheusSink:
    """Counts everything in :data:`~deepinfer_core.observability.metrics.METRICS`.

    Records come in one thread; pages may be made in any other.

    Attributes:
        registry: Holds these metrics and no others; give it to ``prometheus_client.start_http_server`` and the like.
    """

    def __init__(self, info: EngineInfo, *, vllm_names: bool = False) -> None:
        """Begin with zeros.

        Args:
            info: About the engine.
            vllm_names: Show the values under vLLM's names, too.

        Raises:
            ConfigError: prometheus-client is not installed.
        """
        require_prometheus()
        from prometheus_client import CollectorRegistry

        self._engine_labels = {"model_name": info.model_name, "engine": str(info.engine)}
        self._vllm_names = vllm_names
        self._values = MetricValues(info)
        self._lock = Lock()
        self.registry = CollectorRegistry()
        self.registry.register(cast("Collector", self))

    def on_step(self, stats: StepStats) -> None:
        """Count a step."""
        with self._lock:
            self._values.on_step(stats)

    def on_request(self, stats: RequestStats) -> None:
        """Count a request that has ended."""
        with self._lock:
            self._values.on_request(stats)

    def on_event(self, event: StatsEvent) -> None:
        """Count an event."""
        with self._lock:
            self._values.on_event(event)

    def close(self) -> None:
        """Nothing: the last values can still be read."""

    def page(self) -> bytes:
        """The page, as of now; its type is :data:`CONTENT_TYPE`."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def describe(self) -> Iterable[Family]:
        """Names for the registry; there are none to collide with."""
        return ()

    def collect(self) -> Iterable[Family]:
        """What ``prometheus_client`` asks a collector for: every metric with its values, all of one moment."""
        with self._lock:
            series = list(self._values.series())
            families = [self._family(metrics.PREFIX, one) for one in series]
            if self._vllm_names:
                families += [self._family(vllm_names.PREFIX, one) for one in vllm_names.vllm_series(series)]
        return families

    def _family(self, prefix: str, series: Series) -> Family:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        metric = series.metric
        name, names = f"{prefix}{metric.name}", [*self._engine_labels, *series.labels]
        text = f"{metric.meaning[0].upper()}{metric.meaning[1:]}"
        if metric.kind == "histogram":
            family = HistogramMetricFamily(name, text, labels=names)
            for labels, histogram in self._histograms(series):
                buckets = [(floatToGoString(bound), float(count)) for bound, count in histogram.buckets()]
                family.add_metric(labels, buckets, histogram.sum)
            return family
        plain = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(name, text, labels=names)
        for values, number in series.values.items():
            if not isinstance(number, Histogram):
                plain.add_metric([*self._engine_labels.values(), *values], number)
        return plain

    def _histograms(self, series: Series) -> Iterator[tuple[list[str], Histogram]]:
        for values, histogram in series.values.items():
            if isinstance(histogram, Histogram):
                yield [*self._engine_labels.values(), *values], histogram
