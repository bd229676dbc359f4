"""What a backend claims, op by op: the support matrix, read from its table and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.ops.declare import CompositeOp, Op

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import OpTable
    from deepinfer_core.backend.report import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One op on one backend, before any model is bound to it.

    Attributes:
        op: Name of the op.
        summary: What the op does, in one line.
        outcome: ``native`` when the table has an implementation, ``decomposed`` when some part of a composite is
            native, else ``reference``. At a call site outside every limit a native op is not used; the binding
            report of a loaded model says so.
        implementations: For each native implementation, in the order of trying: note and limits in words.
        row_invariant: Every native implementation declares it; False where there is none.
        optional: A backend may lack the op without being called incomplete.
    """

    op: str
    summary: str
    outcome: Outcome
    implementations: tuple[str, ...]
    row_invariant: bool
    optional: bool


def support_matrix(table: OpTable, ops: Iterable[Op[..., Any]]) -> tuple[Support, ...]:
    """One row for each op, in the order given."""
    return tuple(_support(table, op) for op in ops)


def _support(table: OpTable, op: Op[..., Any]) -> Support:
    natives = table.of(op)
    words = tuple(
        "; ".join(filter(None, (native.note, *(limit.text for limit in native.limits)))) or "no limits"
        for native in natives
    )
    return Support(
        op=op.name,
        summary=op.summary,
        outcome=_outcome(table, op),
        implementations=words,
        row_invariant=bool(natives) and all(native.row_invariant for native in natives),
        optional=op.optional,
    )


def _outcome(table: OpTable, op: Op[..., Any]) -> Outcome:
    if table.of(op):
        return "native"
    if isinstance(op, CompositeOp) and any(_outcome(table, part.op) != "reference" for part in op.parts):
        return "decomposed"
    return "reference"
