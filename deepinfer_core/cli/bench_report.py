"""What ``deepinfer bench`` says about a run: to people, and to programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.table import columns

if TYPE_CHECKING:
    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.engine.benchmark import Measurement
    from deepinfer_core.engine.benchmark_goals import Goal
    from deepinfer_core.outputs import DraftMetrics

_NAMES = {
    "first_token_s": "to the first token (TTFT)",
    "token_s": "per token after it (TPOT)",
    "gap_s": "from token to token (ITL)",
    "total_s": "whole request (E2E)",
}
_SHOWN = ("p50", "p90", "p95", "p99", "mean", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """What was measured and with what."""

    benchmark: str
    measurement: Measurement
    goals: Sequence[Goal]
    configuration: Mapping[str, Any]
    binding: BindingReport


def title(run: BenchRun) -> str:
    """One line: what was measured, on what, with how many requests."""
    configuration, report, load = run.configuration, run.binding, _load(run.configuration)
    lengths = ",".join(map(str, configuration["input_len"] or ())) or "tokens of a file"
    return (
        f"{run.benchmark} of {configuration['model']} on {report.backend} ({report.device}): "
        f"{configuration['num_requests']} requests, {lengths} in, {configuration['output_len']} out{load}"
    )


def _load(configuration: Mapping[str, Any]) -> str:
    rate, limit = configuration["request_rate"], configuration["max_concurrency"]
    return f"{f', {rate:g} arrive in a second' if rate else ''}{f', at most {limit} at once' if limit else ''}"


def lines(run: BenchRun) -> Iterator[str]:
    """The report for people."""
    from deepinfer_core.engine.benchmark import summaries

    measurement = run.measurement
    yield title(run)
    failed = f", {measurement.num_failed} of them failed" if measurement.num_failed else ""
    yield f"{len(measurement.requests)} requests in {measurement.duration_s:.2f} s{failed}"
    rates = [
        (f"  {name.removesuffix('_per_s').replace('_', ' ')}/s", f"{v:,.2f}") for name, v in measurement.rates.items()
    ]
    yield from columns(rates, right=(1,))
    if run.goals:
        number = _num_good(run)
        limits = ", ".join(map(str, run.goals))
        per_second = number / measurement.duration_s
        yield f"goodput {per_second:,.2f} requests/s: {number} of {len(measurement.requests)} within {limits}"
    rows: list[Sequence[str]] = [("milliseconds", *_SHOWN)]
    for kind, summary in summaries(measurement).items():
        rows.append((f"  {_NAMES[kind]}", *(f"{1000 * summary[name]:,.2f}" for name in _SHOWN)))
    yield from columns(rows, right=range(1, len(_SHOWN) + 1))
    if measurement.drafts is not None:
        yield from _draft_lines(measurement.drafts, run.configuration["settings"]["speculative_config"]["value"])
    errors = sorted({request.error for request in measurement.requests if request.error})
    yield from (f"failed: {error}" for error in errors)
    yield run.binding.summary()


def _draft_lines(drafts: DraftMetrics, settings: Mapping[str, Any]) -> Iterator[str]:
    """How drafts fared, in all and by place in their block."""
    yield f"speculative decoding: {', '.join(f'{name} {value}' for name, value in settings.items())}"
    rate, length = drafts.acceptance_rate, drafts.mean_accepted_length
    share = f" ({rate:.1%}); accepted length {length:.2f}" if rate is not None else ""
    yield f"drafts: {drafts.num_proposed} made, {drafts.num_verified} verified, {drafts.num_accepted} accepted{share}"
    if drafts.verified:
        shares = (accepted / verified for accepted, verified in zip(drafts.accepted, drafts.verified, strict=True))
        yield from columns(
            [
                ("  place", *(str(place + 1) for place in range(len(drafts.verified)))),
                ("  verified", *map(str, drafts.verified)),
                ("  accepted", *map(str, drafts.accepted)),
                ("  share", *(f"{part:.1%}" for part in shares)),
            ],
            right=range(1, len(drafts.verified) + 1),
        )


def _drafts(measurement: Measurement) -> dict[str, Any]:
    """The same for programs; nothing without speculative decoding."""
    drafts = measurement.drafts
    if drafts is None:
        return {}
    derived = ("num_verified", "num_accepted", "acceptance_rate", "mean_accepted_length")
    return {"drafts": {**asdict(drafts), **{name: getattr(drafts, name) for name in derived}}}


def _num_good(run: BenchRun) -> int:
    from deepinfer_core.engine.benchmark_goals import num_good

    return num_good(run.measurement, run.goals)


def _goodput(run: BenchRun) -> dict[str, float]:
    """What goals were for; nothing without them."""
    if not run.goals:
        return {}
    number = _num_good(run)
    return {"num_good": number, "goodput_requests_per_s": number / run.measurement.duration_s}


def as_json(run: BenchRun) -> dict[str, Any]:
    """The report for programs."""
    from deepinfer_core.engine.benchmark import summaries
    from deepinfer_core.engine.machine import describe_machine, describe_versions

    measurement = run.measurement
    return {
        "benchmark": run.benchmark,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "configuration": run.configuration,
        "machine": describe_machine(),
        "versions": describe_versions(run.binding.backend),
        "binding": run.binding.as_json(),
        "results": {
            "duration_s": measurement.duration_s,
            "num_failed": measurement.num_failed,
            **measurement.rates,
            **_goodput(run),
            **_drafts(measurement),
            **summaries(measurement),
        },
        "requests": [asdict(request) for request in measurement.requests],
    }
