"""The binding report: which op runs natively, which as steps, which by the reference, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["native", "decomposed", "reference"]


@dataclass(frozen=True, slots=True)
class Row:
    """One op at one or more call sites with the same outcome.

    Attributes:
        op: Name of the op.
        outcome: How it is run.
        reason: Why it is not native; for native rows the implementation's note.
        sites: How many call sites share this row.
        row_invariant: Whether a row has the same bits in any company (``binding.is_row_invariant``).
    """

    op: str
    outcome: Outcome
    reason: str
    sites: int
    row_invariant: bool


@dataclass(frozen=True, slots=True)
class BindingReport:
    """The result of binding one model to one backend; made once, at load."""

    backend: str
    device: str
    policy: str
    rows: tuple[Row, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Ops per outcome."""
        tally = Counter(row.outcome for row in self.rows)
        return {outcome: tally.get(outcome, 0) for outcome in ("native", "decomposed", "reference")}

    def as_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "device": self.device,
            "policy": self.policy,
            "counts": self.counts,
            "rows": [asdict(r) for r in self.rows],
        }

    def summary(self) -> str:
        """One line for the log."""
        words = ", ".join(f"{number} {outcome}" for outcome, number in self.counts.items())
        return f"backend {self.backend} on {self.device}: {words} (policy {self.policy})"

    def table(self) -> str:
        """One line per op, aligned."""
        width = max((len(r.op) for r in self.rows), default=0)
        lines = [f"{r.op:<{width}}  {r.outcome:<10}  {r.sites:>4}  {r.reason}".rstrip() for r in self.rows]
        return "\n".join([self.summary(), *lines])
