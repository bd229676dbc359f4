"""Every metric with its meaning, and what a page of them looks like after a few records that are made up."""

from __future__ import annotations

from deepinfer_core.observability.metrics import METRICS, PREFIX, Metric
from deepinfer_core.observability.prometheus import PrometheusSink
from deepinfer_core.observability.records import (
    CompletionStats,
    EngineInfo,
    RequestStats,
    StatsEvent,
    StepStats,
)
from deepinfer_core.observability.vllm_names import OURS
from deepinfer_core.outputs import DraftMetrics, RequestMetrics
from generator.markdown import code, page, table

_INTRODUCTION = f"""\
# Metrics

What `PrometheusSink` counts; [observability.md](observability.md) says how to get it. On a page every name begins with
`{PREFIX}`, that of a counter ends with `_total`, and every series has the labels `model_name` and `engine`. A sample:
[metrics_sample.txt](metrics_sample.txt), made from a prefill step, a decode step and a request that are made up.

Names, types and labels are vLLM's where vLLM has a metric for the same thing. With `vllm_names=True` those marked *yes*
are also there with its prefix `vllm:`, with these differences: `num_requests_waiting_by_reason` knows `capacity` and
`deferred`, which is everything else; `prefix_cache_queries` and `prefix_cache_hits` have no tiers and are the device's,
and `external_prefix_cache_queries` and `external_prefix_cache_hits` are there when there is another tier;
`cache_config_info` has `num_gpu_blocks` for `num_blocks`. `request_success` counts reasons that vLLM does not have.

As in vLLM a draft counts once it is verified: `spec_decode_num_accepted_tokens` over `spec_decode_num_draft_tokens` is
the share that was accepted, and 1 plus `spec_decode_num_accepted_tokens` over `spec_decode_num_drafts` is the mean
number of tokens that a verified block yields."""


def metrics_pages() -> dict[str, str]:
    """The table, and the sample beside it."""
    header = ("metric", "type", "meaning", "unit", "label", "as `vllm:`")
    rows = [_row(metric) for metric in METRICS.values()]
    return {"metrics.md": page(_INTRODUCTION, table(header, rows)), "metrics_sample.txt": sample().decode("utf-8")}


def sample() -> bytes:
    """A page after two steps, a request and an event."""
    info = EngineInfo(
        model_name="tiny",
        block_tokens=128,
        num_blocks=512,
        num_state_slots=16,
        max_num_batched_tokens=8192,
        prefix_caching=True,
    )
    sink = PrometheusSink(info, vllm_names=True)
    for step in _steps():
        sink.on_step(step)
    sink.on_request(_request())
    sink.on_event(StatsEvent(name="request_rejected", time_s=10.08, details={"reason": "max_num_waiting"}))
    return sink.page()


def _row(metric: Metric) -> tuple[str, ...]:
    values = ", ".join(map(code, metric.label_values))
    label = f"{code(metric.label)}{f': {values}' if values else ''}"
    return code(metric.name), metric.kind, metric.meaning, metric.unit, label, "" if metric.name in OURS else "yes"


def _steps() -> tuple[StepStats, StepStats]:
    prefill = StepStats(
        time_s=10.05,
        kind="prefill",
        num_sequences=2,
        num_rows=300,
        num_prompt_tokens=300,
        num_generated_tokens=2,
        num_running=2,
        num_waiting={"capacity": 1, "grammar": 2},
        num_blocks=512,
        num_used_blocks=64,
        num_state_slots=16,
        num_used_state_slots=2,
        prefix_queries={"device": 556, "memory": 300},
        prefix_hits={"device": 256, "memory": 0},
        plan_s=0.0004,
        launch_s=0.0011,
        wait_s=0.0225,
        apply_s=0.0003,
        first_token_s=(0.047, 0.031),
    )
    decode = StepStats(
        time_s=10.058,
        kind="decode",
        num_sequences=2,
        num_rows=7,
        num_padded_rows=1,
        num_wasted_rows=1,
        num_generated_tokens=4,
        num_running=1,
        num_waiting={"capacity": 1},
        num_blocks=512,
        num_used_blocks=32,
        num_state_slots=16,
        num_used_state_slots=1,
        plan_s=0.0002,
        launch_s=0.0004,
        wait_s=0.0071,
        apply_s=0.0002,
        device_idle_s=0.00015,
        inter_token_s=(0.008,),
        num_draft_rows=5,
        drafts=DraftMetrics(num_blocks=1, num_proposed=5, verified=(1, 1, 1, 1, 1), accepted=(1, 1, 1, 0, 0)),
        verify_s=0.0052,
        draft_s=0.0021,
    )
    return prefill, decode


def _request() -> RequestStats:
    times = RequestMetrics(
        arrival_time=10.003,
        first_scheduled_time=10.024,
        first_token_time=10.05,
        last_token_time=10.058,
        finished_time=10.0585,
        num_cached_tokens=256,
        num_output_tokens=5,
    )
    return RequestStats(
        request_id="0",
        num_prompt_tokens=400,
        times=times,
        completions=(CompletionStats(finish_reason="stop", num_tokens=5, decode_s=0.008),),
        max_tokens=64,
        grammar_compile_s=0.004,
    )
