"""Implementations that declare ``row_invariant``: a row's bits depend neither on other rows nor on its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.backend.binding import is_row_invariant
from deepinfer_core.conformance.call import Call, calls
from deepinfer_core.conformance.check import Check, expect
from deepinfer_core.conformance.compare import compare_bits
from deepinfer_core.conformance.execute import observe
from deepinfer_core.conformance.implementations import Candidate, candidates
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.conformance.values import replace_tensors

ARRANGEMENTS: dict[str, Callable[[int], Tensor]] = {
    "again": torch.arange,
    "reversed": lambda rows: torch.arange(rows).flip(0),
    "rotated": lambda rows: torch.arange(rows).roll(1),
    "last_row_alone": lambda rows: torch.tensor([rows - 1]),
    "first_half": lambda rows: torch.arange((rows + 1) // 2),
    "twice": lambda rows: torch.arange(rows).repeat(2),
    "many": lambda rows: torch.arange(rows).repeat(1 + 300 // rows),
}
"""Name -> which of the case's rows are in the call, in which order; ``many`` is beyond any decode batch."""


def checks(subject: Subject) -> Iterator[Check]:
    """``invariance/<op>/<case>/<way>/<arrangement>`` for every way that claims it, and the capability as a whole."""
    yield Check(id="invariance/capability", family="device", run=partial(_capability_is_covered, subject))
    for op in subject.catalogue:
        for call in calls(op):
            if not call.rows:
                continue
            for candidate in candidates(subject.backend, call):
                if _claims(candidate, call):
                    for name in ARRANGEMENTS:
                        run = partial(_same_bits, subject, candidate, call, name)
                        yield Check(id=f"invariance/{call.name}/{candidate.label}/{name}", family=op.family, run=run)


def _claims(candidate: Candidate, call: Call) -> bool:
    """Whether the binding report would say that this way is row-invariant."""
    if candidate.implementation is not None or candidate.kind == "reference":
        return is_row_invariant(call.op, candidate.implementation)
    table = candidate.backend.table
    return all(table.of(part.op) and all(i.row_invariant for i in table.of(part.op)) for part in call.op.parts)


def _capability_is_covered(subject: Subject) -> None:
    """Whoever claims ``batch_invariant`` has, for each required case, a way that the binder takes when it is asked."""
    if not subject.backend.capabilities.batch_invariant:
        return
    lacking = [
        op.name
        for op in subject.catalogue
        if not op.parts and not all(_is_bound(subject, call) for call in calls(op) if call.case.required)
    ]
    expect(not lacking, f"batch_invariant is claimed, but no row-invariant implementation of {', '.join(lacking)}")


def _is_bound(subject: Subject, call: Call) -> bool:
    """Whether the backend has a row-invariant way to run a call: within its limits, or by an exact reference."""
    site = call.site(subject.device.facts)
    natives = [i for i in subject.backend.table.of(call.op) if not any(limit.refusal(site) for limit in i.limits)]
    return any(is_row_invariant(call.op, i) for i in natives) or is_row_invariant(call.op, None)


def _same_bits(subject: Subject, candidate: Candidate, call: Call, arrangement: str) -> str:
    chosen = ARRANGEMENTS[arrangement](call.rows)
    arranged = call.with_rows(chosen)
    if refusals := candidate.refusals(arranged):
        return "; ".join(refusals)
    expected = replace_tensors(observe(candidate, call, subject.device).result, lambda t: t.index_select(0, chosen))
    compare_bits(observe(candidate, arranged, subject.device).result, expected, "result")
    return ""
