"""The metrics of an engine: what each is called, what it means and how it is counted.

Where vLLM has a metric for the same thing, its name, type and labels are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from deepinfer_core.observability.records import DEVICE_TIER, EVENT_NAMES, STEP_KINDS, WAIT_REASONS
from deepinfer_core.outputs import FinishReason

PREFIX = "deepinfer:"
STEP_PARTS = ("plan", "launch", "wait", "apply")
"""Where the host's time in a step goes."""
DEVICE_PARTS = ("verify", "draft")
"""Where the device's goes; choosing tokens and drafting are one part."""

_REASONS: tuple[str, ...] = get_args(FinishReason)
_RAN = tuple(kind for kind in STEP_KINDS if kind != "idle")

MetricType = Literal["gauge", "counter", "histogram"]
"""A ``gauge`` goes up and down, a ``counter`` only up, a ``histogram`` counts values by size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; on the page a counter's name ends with ``_total``.

    Attributes:
        name: Without prefix.
        kind: What it is.
        meaning: What it says.
        unit: Of its values.
        label: What tells its series apart beside model and engine; "" when there is only one.
        label_values: Those that are on the page before anything happened.
        buckets: Upper bounds of a histogram's buckets; the last one, without a bound, is not listed.
    """

    name: str
    kind: MetricType
    meaning: str
    unit: str
    label: str = ""
    label_values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _series(first: int, last: int) -> tuple[float, ...]:
    """1, 2 and 5 times each power of ten from one exponent to another; written so that 0.005 is no 0.0050000001."""
    return tuple(float(f"{digit}e{exponent}") for exponent in range(first, last + 1) for digit in (1, 2, 5))


_SECONDS = _series(-3, 2)
"""A millisecond to minutes: requests."""
_SHORT_SECONDS = _series(-4, 1)
"""A tenth of a millisecond to a minute: tokens, grammars."""
_TOKENS = (*_series(0, 5), 1e6)
_ROWS = tuple(float(2**exponent) for exponent in range(16))
_COMPLETIONS = (1.0, 2.0, 5.0, 10.0, 20.0)


def _gauge(name: str, meaning: str, unit: str, label: str = "", label_values: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="gauge", meaning=meaning, unit=unit, label=label, label_values=label_values)


def _counter(name: str, meaning: str, unit: str, label: str = "", label_values: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", meaning=meaning, unit=unit, label=label, label_values=label_values)


def _histogram(name: str, meaning: str, unit: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind="histogram", meaning=meaning, unit=unit, buckets=buckets)


_STATE = (
    _gauge("num_requests_running", "sequences that have cache memory", "sequences"),
    _gauge("num_requests_waiting", "sequences that wait for some", "sequences"),
    _gauge(
        "num_requests_waiting_by_reason",
        "sequences that wait, by what they wait for",
        "sequences",
        "reason",
        WAIT_REASONS,
    ),
    _gauge("kv_cache_usage_perc", "cache blocks that sequences have, 1 for all", "share"),
    _gauge("state_usage_perc", "state slots that sequences have, 1 for all", "share"),
    _gauge("cache_config_info", "sizes of the caches, as labels; always 1", "none"),
)
_TOKEN_COUNTS = (
    _counter("prompt_tokens", "tokens of prompts that were computed or found in the prefix cache", "tokens"),
    _counter("prompt_tokens_cached", "tokens of prompts that were found in the prefix cache", "tokens"),
    _counter("generation_tokens", "tokens that were generated", "tokens"),
    _counter("prefix_cache_queries", "tokens looked up in the prefix cache, by tier", "tokens", "tier", (DEVICE_TIER,)),
    _counter("prefix_cache_hits", "tokens found in the prefix cache, by tier", "tokens", "tier", (DEVICE_TIER,)),
    _counter("num_preemptions", "sequences that lost their cache memory and were computed again", "sequences"),
)
_STEPS = (
    _counter("steps", "steps that ran", "steps", "kind", _RAN),
    _counter("step_rows", "rows of sequences", "rows", "kind", _RAN),
    _counter("step_padded_rows", "rows that captured graphs added", "rows"),
    _counter("step_wasted_rows", "rows of sequences that had ended (overlap)", "rows"),
    _counter("step_seconds", "time of the host, by part of a step", "seconds", "part", STEP_PARTS),
    _counter("device_idle_seconds", "time between two steps in which the device had no work, where known", "seconds"),
    _histogram("iteration_tokens_total", "rows of a step", "rows", _ROWS),
    _histogram("time_to_first_token_seconds", "from arrival to first token", "seconds", _SECONDS),
    _histogram("inter_token_latency_seconds", "from token to token", "seconds", _SHORT_SECONDS),
)
_DRAFTS = (
    _counter("spec_decode_num_drafts", "blocks of drafts of which some were verified", "blocks"),
    _counter("spec_decode_num_draft_tokens", "drafts that were verified", "tokens"),
    _counter("spec_decode_num_accepted_tokens", "drafts that were accepted", "tokens"),
    _counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "drafts that were accepted, by place in their block, from 0",
        "tokens",
        "position",
    ),
    _counter(
        "spec_decode_num_verified_tokens_per_pos",
        "drafts that were verified, by place in their block, from 0",
        "tokens",
        "position",
    ),
    _counter("spec_decode_num_proposed_tokens", "drafts that were made, whether verified or not", "tokens"),
    _counter("step_draft_rows", "rows of drafts, also of sequences that turned out to have ended", "rows"),
    _counter(
        "step_device_seconds",
        "time of the device with speculative decoding: forward pass and sampling; making drafts",
        "seconds",
        "part",
        DEVICE_PARTS,
    ),
)
_REQUESTS = (
    _counter("request_success", "completions that ended, by reason", "completions", "finished_reason", _REASONS),
    _counter("admission_rejections", "requests that a limit of the queue turned away", "requests", "reason"),
    _histogram("request_prompt_tokens", "length of a prompt", "tokens", _TOKENS),
    _histogram("request_generation_tokens", "length of a completion", "tokens", _TOKENS),
    _histogram("request_params_n", "completions that a request asked for", "completions", _COMPLETIONS),
    _histogram("request_params_max_tokens", "limit that a request gave", "tokens", _TOKENS),
    _histogram("e2e_request_latency_seconds", "from arrival to end", "seconds", _SECONDS),
    _histogram("request_queue_time_seconds", "from arrival to first step", "seconds", _SECONDS),
    _histogram("request_prefill_time_seconds", "from first step to first token", "seconds", _SECONDS),
    _histogram("request_decode_time_seconds", "from first token to last", "seconds", _SECONDS),
    _histogram("request_inference_time_seconds", "from first step to last token", "seconds", _SECONDS),
    _histogram(
        "request_time_per_output_token_seconds", "mean from token to token of a completion", "seconds", _SHORT_SECONDS
    ),
    _histogram("grammar_compilation_time_seconds", "time in which a grammar was compiled", "seconds", _SHORT_SECONDS),
)
_EVENTS = (_counter("events", "what is rare, by name", "events", "event", EVENT_NAMES),)

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_STATE, *_TOKEN_COUNTS, *_STEPS, *_DRAFTS, *_REQUESTS, *_EVENTS)
}
"""By name, in the order of the page."""
