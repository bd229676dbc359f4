"""The values of all metrics, as plain numbers: a step costs microseconds, and a page is made when it is asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from deepinfer_core.observability.metrics import DEVICE_PARTS, METRICS, STEP_PARTS, Metric
from deepinfer_core.observability.records import EngineInfo, RequestStats, StatsEvent, StepStats
from deepinfer_core.outputs import DraftMetrics


class Histogram:
    """Values counted by size.

    Attributes:
        sum: Of all values.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Begin empty.

        Args:
            bounds: Upper bounds of the buckets, which belong to them, ascending; a last bucket has none.
        """
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Count some values."""
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self.sum += value

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity at the end, with the number of values up to it."""
        return zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with its values.

    Attributes:
        metric: Which.
        labels: Names of the labels beside model and engine.
        values: By the values of these labels; of a histogram there is one, by none.
    """

    metric: Metric
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float | Histogram]


class MetricValues:
    """Counts records. Not safe for threads."""

    def __init__(self, info: EngineInfo) -> None:
        """Begin with zeros.

        Args:
            info: Whose sizes ``cache_config_info`` has.
        """
        self._numbers: dict[str, dict[str, float]] = {
            metric.name: dict.fromkeys(metric.label_values or (("",) if not metric.label else ()), 0.0)
            for metric in METRICS.values()
            if metric.kind != "histogram"
        }
        self._histograms = {
            metric.name: Histogram(metric.buckets) for metric in METRICS.values() if metric.kind == "histogram"
        }
        self._sizes = {
            "block_size": str(info.block_tokens),
            "num_blocks": str(info.num_blocks),
            "num_state_slots": str(info.num_state_slots),
            "kv_cache_size_tokens": str(info.block_tokens * info.num_blocks),
            "enable_prefix_caching": str(info.prefix_caching),
        }

    def series(self) -> Iterator[Series]:
        """Every metric, in the order of the page."""
        for name, metric in METRICS.items():
            if name == "cache_config_info":
                yield Series(metric, tuple(self._sizes), {tuple(self._sizes.values()): 1.0})
            elif metric.kind == "histogram":
                yield Series(metric, (), {(): self._histograms[name]})
            elif metric.label:
                yield Series(metric, (metric.label,), {(key,): value for key, value in self._numbers[name].items()})
            else:
                yield Series(metric, (), {(): self._numbers[name][""]})

    def on_step(self, stats: StepStats) -> None:
        """Count a step."""
        self._set_state(stats)
        self._count_tokens(stats)
        if stats.kind != "idle":
            self._count_step(stats)
        if stats.drafts is not None:
            self._count_drafts(stats.drafts)

    def on_request(self, stats: RequestStats) -> None:
        """Count a request that has ended."""
        times, observe = stats.times, self._observe
        for completion in stats.completions:
            self._add("request_success", 1, completion.finish_reason)
            observe("request_generation_tokens", completion.num_tokens)
            observe("request_time_per_output_token_seconds", completion.time_per_output_token_s)
        observe("request_prompt_tokens", stats.num_prompt_tokens)
        observe("request_params_n", stats.n)
        observe("request_params_max_tokens", stats.max_tokens)
        observe("e2e_request_latency_seconds", times.total_time_s)
        observe("request_queue_time_seconds", times.queue_time_s)
        observe("request_prefill_time_seconds", times.prefill_time_s)
        observe("request_decode_time_seconds", times.decode_time_s)
        observe("request_inference_time_seconds", times.inference_time_s)
        observe("grammar_compilation_time_seconds", stats.grammar_compile_s)

    def on_event(self, event: StatsEvent) -> None:
        """Count an event."""
        self._add("events", 1, event.name)
        if event.name == "request_rejected":
            self._add("admission_rejections", 1, str(event.details.get("reason", "")))

    def _set_state(self, stats: StepStats) -> None:
        numbers = self._numbers
        numbers["num_requests_running"][""] = stats.num_running
        numbers["num_requests_waiting"][""] = sum(stats.num_waiting.values())
        by_reason = numbers["num_requests_waiting_by_reason"]
        by_reason.update(dict.fromkeys(by_reason, 0.0))
        by_reason.update({reason: float(number) for reason, number in stats.num_waiting.items()})
        numbers["kv_cache_usage_perc"][""] = share(stats.num_used_blocks, stats.num_blocks)
        numbers["state_usage_perc"][""] = share(stats.num_used_state_slots, stats.num_state_slots)

    def _count_tokens(self, stats: StepStats) -> None:
        self._add("prompt_tokens", stats.num_prompt_tokens + stats.num_cached_tokens)
        self._add("prompt_tokens_cached", stats.num_cached_tokens)
        self._add("generation_tokens", stats.num_generated_tokens)
        self._add("num_preemptions", stats.num_preemptions)
        for tier, number in stats.prefix_queries.items():
            self._add("prefix_cache_queries", number, tier)
        for tier, number in stats.prefix_hits.items():
            self._add("prefix_cache_hits", number, tier)
        self._histograms["time_to_first_token_seconds"].observe(stats.first_token_s)
        self._histograms["inter_token_latency_seconds"].observe(stats.inter_token_s)

    def _count_step(self, stats: StepStats) -> None:
        self._add("steps", 1, stats.kind)
        self._add("step_rows", stats.num_rows, stats.kind)
        self._add("step_padded_rows", stats.num_padded_rows)
        self._add("step_wasted_rows", stats.num_wasted_rows)
        for part, seconds in zip(STEP_PARTS, (stats.plan_s, stats.launch_s, stats.wait_s, stats.apply_s), strict=True):
            self._add("step_seconds", seconds, part)
        self._add("device_idle_seconds", stats.device_idle_s or 0.0)
        self._observe("iteration_tokens_total", stats.num_rows)
        self._add("step_draft_rows", stats.num_draft_rows)
        for part, seconds in zip(DEVICE_PARTS, (stats.verify_s, stats.draft_s), strict=True):
            self._add("step_device_seconds", seconds or 0.0, part)

    def _count_drafts(self, drafts: DraftMetrics) -> None:
        self._add("spec_decode_num_drafts", drafts.num_blocks)
        self._add("spec_decode_num_draft_tokens", drafts.num_verified)
        self._add("spec_decode_num_accepted_tokens", drafts.num_accepted)
        self._add("spec_decode_num_proposed_tokens", drafts.num_proposed)
        for name, numbers in (("accepted", drafts.accepted), ("verified", drafts.verified)):
            for place, number in enumerate(numbers):
                self._add(f"spec_decode_num_{name}_tokens_per_pos", number, str(place))

    def _add(self, name: str, number: float, label: str = "") -> None:
        values = self._numbers[name]
        values[label] = values.get(label, 0.0) + number

    def _observe(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[name].observe((value,))


def share(part: float, whole: float) -> float:
    """A part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0
