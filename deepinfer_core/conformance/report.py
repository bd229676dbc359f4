"""The report of a conformance run: counts per family, what is claimed, every failure; as text and as JSON."""

from __future__ import annotations

import platform
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import deepinfer_core
from deepinfer_core.backend.interface import INTERFACE_VERSION
from deepinfer_core.backend.support import Support, support_matrix
from deepinfer_core.conformance.check import Result, Status
from deepinfer_core.conformance.subject import Subject

STATUSES: tuple[Status, ...] = ("passed", "refused", "known failure", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """Everything worth publishing about one run.

    Attributes:
        accelerator: What was asked for.
        backend: Name of the backend that serves it.
        facts: Of the device.
        policy: Fallback policy that was demanded.
        versions: Of everything that takes part.
        support: What the backend claims, op by op.
        results: What became of each check.
    """

    accelerator: str
    backend: str
    facts: Mapping[str, str]
    policy: str
    versions: Mapping[str, str]
    support: tuple[Support, ...]
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed. A run of no check at all has not passed."""
        return bool(self.results) and not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def families(self) -> dict[str, dict[str, int]]:
        """Family -> status -> checks, with a ``total``."""
        counts: dict[str, Counter[str]] = {}
        for result in self.results:
            counts.setdefault(result.family, Counter())[result.status] += 1
        return {
            name: {**{s: tally[s] for s in STATUSES}, "total": tally.total()} for name, tally in sorted(counts.items())
        }

    def as_json(self) -> dict[str, Any]:
        heading = {name: getattr(self, name) for name in ("accelerator", "backend", "policy", "passed", "families")}
        return {
            **heading,
            "facts": dict(self.facts),
            "versions": dict(self.versions),
            "support": [asdict(row) for row in self.support],
            "results": [asdict(result) for result in self.results],
        }

    def as_text(self) -> str:
        """Heading, table of families, claims, and every failure in full."""
        lines = [*heading(self), "", *family_table(self.families), "", *_claims(self.support)]
        lines += [f"\nFAILED {result.detail}" for result in self.failures]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        count, seconds = len(self.results), sum(result.seconds for result in self.results)
        if not count:
            return "no check was run: the selection matches none"
        outcome = f"{len(self.failures)} failed" if self.failures else "none failed"
        return f"{count} checks, {outcome} ({seconds:.1f} s)"


def make_report(subject: Subject, accelerator: str, results: Sequence[Result]) -> ConformanceReport:
    """The report of a run on a subject."""
    return ConformanceReport(
        accelerator=accelerator,
        backend=subject.backend.name,
        facts=subject.device.facts,
        policy=subject.policy.value,
        versions=versions(),
        support=support_matrix(subject.backend.table, subject.catalogue),
        results=tuple(results),
    )


def versions() -> dict[str, str]:
    """What a result depends on."""
    return {
        "deepinfer-core": deepinfer_core.__version__,
        "backend interface": str(INTERFACE_VERSION),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def heading(report: ConformanceReport) -> list[str]:
    """What is tested, on what, with what."""
    numbers = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    device = ", ".join(f"{name} {value}" for name, value in report.facts.items())
    return [
        f"conformance of backend {report.backend!r} (accelerator {report.accelerator}, policy {report.policy})",
        f"device: {device}",
        f"versions: {numbers}",
    ]


def family_table(families: Mapping[str, Mapping[str, int]]) -> list[str]:
    """One line for each family, and the sum."""
    columns = (*STATUSES, "total")
    sums = {column: sum(counts[column] for counts in families.values()) for column in columns}
    rows = [
        ("family", *columns),
        *((name, *(str(counts[c]) for c in columns)) for name, counts in (*families.items(), ("all", sums))),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) + 1)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _claims(support: Sequence[Support]) -> list[str]:
    """How many ops the backend runs natively, as steps, by reference; native ones with their limits."""
    tally = Counter(row.outcome for row in support)
    missing = [row.op for row in support if row.outcome == "reference" and not row.optional]
    lines = ["ops: " + ", ".join(f"{tally[outcome]} {outcome}" for outcome in ("native", "decomposed", "reference"))]
    lines += [f"  {row.op}: {' | '.join(row.implementations)}" for row in support if row.outcome == "native"]
    return lines + textwrap.wrap(f"run by reference: {', '.join(missing)}", 110, subsequent_indent="  ") * bool(missing)
