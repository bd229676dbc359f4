"""Every op, every case, in every way in which the backend can run it, against the reference on the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from deepinfer_core.conformance.call import Call, calls
from deepinfer_core.conformance.check import Check
from deepinfer_core.conformance.compare import compare
from deepinfer_core.conformance.execute import observe, observe_reference
from deepinfer_core.conformance.implementations import Candidate, candidates
from deepinfer_core.conformance.subject import Subject


def checks(subject: Subject) -> Iterator[Check]:
    """``ops/<op>/<case>/<way>``: results and written arguments agree; nothing else was touched."""
    for op in subject.catalogue:
        for call in calls(op):
            for candidate in candidates(subject.backend, call):
                run = partial(_agrees, subject, candidate, call)
                yield Check(id=f"ops/{call.name}/{candidate.label}", family=op.family, run=run)


def _agrees(subject: Subject, candidate: Candidate, call: Call) -> None:
    compare(observe(candidate, call, subject.device), observe_reference(call), call.op.tolerance)
