"""The page of metrics, read back by the parser of prometheus_client."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deepinfer_core.observability.metrics import METRICS
from deepinfer_core.observability.prometheus import PrometheusSink
from deepinfer_core.observability.records import CompletionStats, StatsEvent
from deepinfer_core.observability.vllm_names import OURS
from deepinfer_core.outputs import DraftMetrics
from tests.observability.sample import INFO, request, step

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

ENGINE = {"model_name": 'a "model"', "engine": "3"}

VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "num_requests_waiting_by_reason": "gauge",
    "kv_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "admission_rejections": "counter",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "iteration_tokens_total": "histogram",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
}
"""vLLM 0.33's names and types, as far as an engine like this one has something to say."""


def families(sink: PrometheusSink) -> dict[str, Family]:
    return {family.name: family for family in text_string_to_metric_families(sink.page().decode())}


def value(sink: PrometheusSink, name: str, **labels: str) -> float | None:
    """One sample of the page."""
    for family in families(sink).values():
        for sample in family.samples:
            if sample.name == name and sample.labels == {**ENGINE, **labels}:
                return sample.value
    return None


@pytest.mark.parametrize("vllm_names", [False, True])
def test_page_has_every_metric_with_its_type_from_the_start(vllm_names: bool) -> None:
    found = {name: family.type for name, family in families(PrometheusSink(INFO, vllm_names=vllm_names)).items()}

    expected = {f"deepinfer:{metric.name}": metric.kind for metric in METRICS.values()}
    if vllm_names:
        expected |= {f"vllm:{name}": kind for name, kind in VLLM.items()}
    assert found == expected


def test_every_metric_is_vllms_or_ours() -> None:
    assert set(VLLM) | OURS == set(METRICS)
    assert not set(VLLM) & OURS
    assert {name: METRICS[name].kind for name in VLLM} == VLLM


def test_step_is_counted() -> None:
    sink = PrometheusSink(INFO)

    sink.on_step(
        step(
            kind="prefill",
            num_rows=40,
            num_padded_rows=24,
            num_wasted_rows=3,
            num_prompt_tokens=40,
            num_generated_tokens=2,
            num_preemptions=1,
            num_waiting={"capacity": 2, "grammar": 3},
            prefix_queries={"device": 100, "disk": 60},
            prefix_hits={"device": 40, "disk": 20},
            device_idle_s=0.5,
        )
    )

    expected = {
        "num_requests_running": 4,
        "num_requests_waiting": 5,
        "kv_cache_usage_perc": 0.25,
        "state_usage_perc": 0.5,
        "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 60,
        "generation_tokens_total": 2,
        "num_preemptions_total": 1,
        "step_padded_rows_total": 24,
        "step_wasted_rows_total": 3,
        "device_idle_seconds_total": 0.5,
    }
    assert {name: value(sink, f"deepinfer:{name}") for name in expected} == expected
    assert value(sink, "deepinfer:num_requests_waiting_by_reason", reason="grammar") == 3
    assert value(sink, "deepinfer:steps_total", kind="prefill") == 1
    assert value(sink, "deepinfer:steps_total", kind="decode") == 0
    assert value(sink, "deepinfer:step_rows_total", kind="prefill") == 40
    assert value(sink, "deepinfer:step_seconds_total", part="wait") == 0.006
    assert value(sink, "deepinfer:prefix_cache_hits_total", tier="disk") == 20


def test_drafts_are_counted_by_place_under_vllms_names_and_ours() -> None:
    sink = PrometheusSink(INFO, vllm_names=True)
    sink.on_step(
        step(
            num_draft_rows=8,
            drafts=DraftMetrics(num_blocks=3, num_proposed=20, verified=(3, 2, 2), accepted=(2, 1, 0)),
            verify_s=0.25,
            draft_s=0.125,
        )
    )
    sink.on_step(step(num_draft_rows=1, drafts=DraftMetrics(num_blocks=1, verified=(1,), accepted=(1,)), verify_s=0.5))
    sink.on_step(step())

    expected = {
        "spec_decode_num_drafts": 4,
        "spec_decode_num_draft_tokens": 8,
        "spec_decode_num_accepted_tokens": 4,
    }
    for prefix in ("deepinfer", "vllm"):
        assert {name: value(sink, f"{prefix}:{name}_total") for name in expected} == expected
        per_place = f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total"
        assert [value(sink, per_place, position=place) for place in "0123"] == [3, 1, 0, None]
    verified = "deepinfer:spec_decode_num_verified_tokens_per_pos_total"
    assert [value(sink, verified, position=place) for place in "0123"] == [4, 2, 2, None]
    assert value(sink, "deepinfer:spec_decode_num_proposed_tokens_total") == 20
    assert value(sink, "deepinfer:step_draft_rows_total") == 9
    assert value(sink, "deepinfer:step_device_seconds_total", part="verify") == 0.75
    assert value(sink, "deepinfer:step_device_seconds_total", part="draft") == 0.125


def test_what_is_no_step_changes_the_state_alone() -> None:
    sink = PrometheusSink(INFO)
    sink.on_step(step(num_waiting={"grammar": 1}))

    sink.on_step(step(kind="idle", num_rows=0, num_generated_tokens=0, num_running=0, num_used_blocks=0))

    assert value(sink, "deepinfer:num_requests_running") == 0
    assert value(sink, "deepinfer:num_requests_waiting_by_reason", reason="grammar") == 0
    assert value(sink, "deepinfer:iteration_tokens_total_count") == 1
    assert sum(s.value for s in families(sink)["deepinfer:steps"].samples) == 1


def test_request_is_counted() -> None:
    sink = PrometheusSink(INFO)

    sink.on_request(
        request(
            CompletionStats(finish_reason="stop", num_tokens=5, decode_s=2.0),
            CompletionStats(finish_reason="length", num_tokens=1, decode_s=0.0),
            grammar_compile_s=0.25,
        )
    )

    sums = {
        "request_prompt_tokens": (1, 10),
        "request_generation_tokens": (2, 6),
        "request_params_n": (1, 2),
        "request_params_max_tokens": (1, 16),
        "e2e_request_latency_seconds": (1, 5),
        "request_queue_time_seconds": (1, 1),
        "request_prefill_time_seconds": (1, 1),
        "request_decode_time_seconds": (1, 2),
        "request_inference_time_seconds": (1, 3),
        "request_time_per_output_token_seconds": (1, 0.5),
        "grammar_compilation_time_seconds": (1, 0.25),
    }
    found = {name: (value(sink, f"deepinfer:{name}_count"), value(sink, f"deepinfer:{name}_sum")) for name in sums}
    assert found == sums
    reasons = {s.labels["finished_reason"]: s.value for s in families(sink)["deepinfer:request_success"].samples}
    assert reasons == {"stop": 1, "length": 1, "abort": 0, "timeout": 0, "error": 0}


def test_what_a_request_did_not_reach_is_not_observed() -> None:
    sink = PrometheusSink(INFO)
    aborted = request(CompletionStats(finish_reason="abort", num_tokens=0))

    sink.on_request(request(*aborted.completions, times=type(aborted.times)(arrival_time=1.0, finished_time=3.0)))

    assert value(sink, "deepinfer:request_queue_time_seconds_count") == 0
    assert value(sink, "deepinfer:e2e_request_latency_seconds_sum") == 2


def test_events_and_rejections_are_counted() -> None:
    sink = PrometheusSink(INFO)

    sink.on_event(StatsEvent(name="step_failed", time_s=1.0))
    sink.on_event(StatsEvent(name="request_rejected", time_s=1.0, details={"reason": "max_num_waiting"}))

    assert value(sink, "deepinfer:events_total", event="step_failed") == 1
    assert value(sink, "deepinfer:events_total", event="request_rejected") == 1
    assert value(sink, "deepinfer:admission_rejections_total", reason="max_num_waiting") == 1


def test_buckets_hold_values_up_to_their_bound_and_add_up() -> None:
    sink = PrometheusSink(INFO)
    numbers = random.Random(7)
    gaps = tuple(numbers.choice((0.001, 0.002, 0.0020001, numbers.expovariate(20), 100.0)) for _ in range(500))

    sink.on_step(step(inter_token_s=gaps))

    samples = families(sink)["deepinfer:inter_token_latency_seconds"].samples
    buckets = {float(s.labels["le"]): s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets == {bound: sum(gap <= bound for gap in gaps) for bound in buckets}
    assert list(buckets) == sorted(buckets)
    assert buckets[math.inf] == value(sink, "deepinfer:inter_token_latency_seconds_count") == 500
    assert value(sink, "deepinfer:inter_token_latency_seconds_sum") == pytest.approx(sum(gaps))


def test_counters_and_buckets_never_fall() -> None:
    sink = PrometheusSink(INFO, vllm_names=True)
    numbers = random.Random(11)

    def growing() -> dict[tuple[str, str], float]:
        return {
            (sample.name, str(sample.labels)): sample.value
            for family in families(sink).values()
            if family.type != "gauge"
            for sample in family.samples
        }

    before = growing()
    for _ in range(30):
        queries = numbers.randrange(100)
        sink.on_step(
            step(
                kind=numbers.choice(("prefill", "decode", "mixed", "idle")),
                num_rows=numbers.randrange(1000),
                num_running=numbers.randrange(9),
                prefix_queries={"device": queries, "disk": queries // 2},
                prefix_hits={"device": queries // 2, "disk": queries // 4},
                first_token_s=(numbers.random(),),
                inter_token_s=(numbers.random(),) * 3,
                drafts=DraftMetrics(num_blocks=1, num_proposed=3, verified=(1, 1), accepted=(1, 0)),
            )
        )
        sink.on_request(request(num_prompt_tokens=numbers.randrange(10000)))
        after = growing()
        assert [key for key, number in before.items() if after[key] < number] == []
        before = after


def test_values_under_vllms_names_are_the_same_but_for_tiers_reasons_and_blocks() -> None:
    sink = PrometheusSink(INFO, vllm_names=True)
    sink.on_step(
        step(
            num_waiting={"capacity": 2, "grammar": 3},
            prefix_queries={"device": 100, "memory": 60, "disk": 45},
            prefix_hits={"device": 40, "memory": 15, "disk": 5},
            first_token_s=(0.5,),
        )
    )
    sink.on_request(request())

    found = families(sink)
    special = {"num_requests_waiting_by_reason", "cache_config_info", "prefix_cache_queries", "prefix_cache_hits"}
    for name in VLLM.keys() - special:
        ours = [(s.name.partition(":")[2], s.labels, s.value) for s in found[f"deepinfer:{name}"].samples]
        assert [(s.name.partition(":")[2], s.labels, s.value) for s in found[f"vllm:{name}"].samples] == ours
    assert value(sink, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(sink, "vllm:num_requests_waiting_by_reason", reason="deferred") == 3
    assert value(sink, "vllm:prefix_cache_queries_total") == 100
    assert value(sink, "vllm:prefix_cache_hits_total") == 40
    assert value(sink, "vllm:external_prefix_cache_queries_total") == 60
    assert value(sink, "vllm:external_prefix_cache_hits_total") == 20
    sizes = found["vllm:cache_config_info"].samples[0]
    assert (sizes.value, sizes.labels["num_gpu_blocks"], sizes.labels["block_size"]) == (1, "64", "128")


def test_two_engines_do_not_share_a_registry() -> None:
    one, two = PrometheusSink(INFO), PrometheusSink(INFO)

    one.on_step(step())

    assert value(one, "deepinfer:generation_tokens_total") == 4
    assert value(two, "deepinfer:generation_tokens_total") == 0


def test_last_values_can_be_read_after_the_end() -> None:
    sink = PrometheusSink(INFO)
    sink.on_step(step())
    sink.close()

    assert value(sink, "deepinfer:generation_tokens_total") == 4


def test_metrics_without_prometheus_client_are_refused() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from deepinfer_core.observability.prometheus import PrometheusSink\n"
        "from tests.observability.sample import INFO\n"
        "PrometheusSink(INFO)\n"
    )
    root = Path(__file__).parents[2]

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)

    assert "metrics need prometheus-client, which is not installed: pip install" in done.stderr


def test_sample_of_the_documentation_is_a_page() -> None:
    text = (Path(__file__).parents[2] / "docs/metrics_sample.txt").read_text(encoding="utf-8")

    found = {family.name for family in text_string_to_metric_families(text)}

    assert {f"deepinfer:{name}" for name in METRICS} <= found
    assert {f"vllm:{name}" for name in VLLM} <= found
    assert re.search(r'^vllm:num_requests_running\{engine="0",model_name="tiny"\} 1.0$', text, re.MULTILINE)
