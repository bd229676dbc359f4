"""The same values under the names that vLLM 0.33 has for them, for routers and dashboards that know those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from deepinfer_core.observability.metric_values import Histogram, Series
from deepinfer_core.observability.metrics import METRICS, Metric
from deepinfer_core.observability.records import DEVICE_TIER

PREFIX = "vllm:"

OURS = frozenset(
    {
        "state_usage_perc",
        "steps",
        "step_rows",
        "step_padded_rows",
        "step_wasted_rows",
        "step_seconds",
        "device_idle_seconds",
        "spec_decode_num_verified_tokens_per_pos",
        "spec_decode_num_proposed_tokens",
        "step_draft_rows",
        "step_device_seconds",
        "grammar_compilation_time_seconds",
        "events",
    }
)
"""Metrics for which vLLM has no name."""

_Values = Mapping[tuple[str, ...], float | Histogram]


def vllm_series(series: Iterable[Series]) -> Iterator[Series]:
    """Ours as vLLM would show them.

    Most differ in the prefix alone. Waiting for anything but capacity is ``deferred``. ``prefix_cache_*`` has no tiers:
    it is the device's, and what was looked up and found elsewhere is ``external_prefix_cache_*``, which is there when
    there is such a tier.
    """
    given = {one.metric.name: one for one in series}
    for name, one in given.items():
        if name == "num_requests_waiting_by_reason":
            yield replace(one, values=_waiting(one.values))
        elif name == "cache_config_info":
            yield replace(one, labels=tuple({"num_blocks": "num_gpu_blocks"}.get(label, label) for label in one.labels))
        elif name in ("prefix_cache_queries", "prefix_cache_hits"):
            yield Series(one.metric, (), {(): one.values[DEVICE_TIER,]})
        elif name not in OURS:
            yield one
    yield from _external(given["prefix_cache_queries"].values, given["prefix_cache_hits"].values)


def _waiting(values: _Values) -> _Values:
    capacity = values["capacity",]
    return {("capacity",): capacity, ("deferred",): _sum(values) - _number(capacity)}


def _external(queries: _Values, hits: _Values) -> Iterator[Series]:
    """Whatever the device did not have was looked up elsewhere."""
    elsewhere = {tier: value for tier, value in hits.items() if tier != (DEVICE_TIER,)}
    if not elsewhere and set(queries) <= {(DEVICE_TIER,)}:
        return
    missed = _number(queries[DEVICE_TIER,]) - _number(hits[DEVICE_TIER,])
    yield Series(_renamed("prefix_cache_queries"), (), {(): missed})
    yield Series(_renamed("prefix_cache_hits"), (), {(): _sum(elsewhere)})


def _renamed(name: str) -> Metric:
    metric = METRICS[name]
    return replace(metric, name=f"external_{name}", meaning=f"{metric.meaning}, beside the device", label="")


def _number(value: float | Histogram) -> float:
    return 0.0 if isinstance(value, Histogram) else value


def _sum(values: _Values) -> float:
    return sum(map(_number, values.values()))
