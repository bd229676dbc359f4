"""What ``deepinfer calibrate`` says about a run: to people, to programs, and in the file of temperatures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.table import columns
from deepinfer_core.speculation.calibration import FittedTemperatures, PositionMeasure, weighted_ece
from deepinfer_core.speculation.calibration_file import Calibration

if TYPE_CHECKING:
    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.speculation.observation import DraftObservation

_HEADINGS = ("drafts", "blocks", "survived", "temperature", "ECE before", "after", "by chance", "AUC before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """Verified blocks, and what they come from.

    Attributes:
        model: What the user called it.
        checkpoint: Its fingerprint.
        num_requests: Requests that ran.
        num_failed: Those of them that ended with an error.
        blocks: In the order of the requests.
        params: How tokens were chosen.
        prompts: The file of the prompts.
        settings: Of the engine, with the source of each.
        binding: What ran each op.
    """

    model: str
    checkpoint: str
    num_requests: int
    num_failed: int
    blocks: Sequence[DraftObservation]
    params: SamplingParams
    prompts: str
    settings: Mapping[str, Any]
    binding: BindingReport


def calibration_of(run: ObservedRun, fit: FittedTemperatures) -> Calibration:
    """What goes into the file."""
    return Calibration(
        temperatures=fit.temperatures,
        block_size=len(fit.temperatures),
        checkpoint=run.checkpoint,
        model=run.model,
        numerics=run.settings["numerics"]["value"],
        temperature=run.params.temperature,
        num_blocks=fit.num_blocks,
        num_held_out_blocks=fit.num_held_out_blocks,
        ece_before=tuple(one.ece for one in fit.before),
        ece_after=tuple(one.ece for one in fit.after),
        auc_before=tuple(one.auc for one in fit.before),
        auc_after=tuple(one.auc for one in fit.after),
    )


def title(run: ObservedRun) -> str:
    """One line: what was observed, on what."""
    report = run.binding
    return (
        f"confidence of {run.model} on {report.backend} ({report.device}) at temperature {run.params.temperature:g}: "
        f"{run.num_requests} requests, up to {run.params.max_tokens} tokens"
    )


def lines(run: ObservedRun, fit: FittedTemperatures) -> Iterator[str]:
    """The report for people."""
    yield title(run)
    yield (
        f"fitted on {fit.num_blocks} blocks of {fit.num_requests} requests; the table is about "
        f"{fit.num_held_out_blocks} blocks of {fit.num_held_out_requests} others"
    )
    if run.num_failed:
        yield f"{run.num_failed} requests failed"
    rows = [_HEADINGS, *map(_row, fit.before, fit.after, fit.temperatures)]
    blocks = f"{sum(one.num_blocks for one in fit.before)}"
    rows.append(
        ("all", blocks, "", "", f"{weighted_ece(fit.before):.4f}", f"{weighted_ece(fit.after):.4f}", "", "", "")
    )
    yield from columns(rows, right=range(len(_HEADINGS)))
    yield from _doubts(fit)


def _row(before: PositionMeasure, after: PositionMeasure, temperature: float) -> tuple[str, ...]:
    drafts = "1" if before.position == 1 else f"1 to {before.position}"
    counts = (f"{before.num_blocks}", f"{before.accepted:.3f}", f"{temperature:.3f}")
    errors = (f"{before.ece:.4f}", f"{after.ece:.4f}", f"{after.ece_by_chance:.4f}")
    return (drafts, *counts, *errors, _area(before.auc), _area(after.auc))


def _area(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _doubts(fit: FittedTemperatures) -> Iterator[str]:
    """Where the fit should not be believed without more data."""
    one_kind = [str(one.position) for one in fit.before if one.auc is None]
    pairs = zip(fit.before, fit.after, strict=True)
    worse = [str(b.position) for b, a in pairs if a.ece > b.ece + a.ece_by_chance]
    unclear = [str(one.position) for one in fit.before if one.ece <= one.ece_by_chance and one.auc is not None]
    if unclear:
        yield (
            f"note: up to draft {', '.join(unclear)} the error before is no larger than chance makes it with so few "
            "blocks, and temperatures mean little; give more prompts"
        )
    if one_kind:
        yield f"note: up to draft {', '.join(one_kind)} all blocks survived, or none did; more prompts would tell more"
    if worse:
        yield f"note: up to draft {', '.join(worse)} the error has grown on held-out requests; fit on more prompts"


def as_json(run: ObservedRun, fit: FittedTemperatures) -> dict[str, Any]:
    """The report for programs."""
    from deepinfer_core.engine.machine import describe_machine, describe_versions

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "configuration": {
            "model": run.model,
            "prompts": run.prompts,
            "num_requests": run.num_requests,
            "temperature": run.params.temperature,
            "max_tokens": run.params.max_tokens,
            "seed": run.params.seed,
            "settings": run.settings,
        },
        "machine": describe_machine(),
        "versions": describe_versions(run.binding.backend),
        "binding": run.binding.as_json(),
        "results": {
            "num_failed": run.num_failed,
            "ece_before": weighted_ece(fit.before),
            "ece_after": weighted_ece(fit.after),
            **asdict(fit),
        },
    }
