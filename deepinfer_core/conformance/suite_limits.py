"""Limits: what a backend refuses is refused at binding and in words, and what it may not refuse is not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from deepinfer_core.backend.binding import Binder
from deepinfer_core.backend.report import Row
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.conformance.call import Call, calls
from deepinfer_core.conformance.check import Check, ConformanceFailure, expect
from deepinfer_core.conformance.guard import place
from deepinfer_core.conformance.implementations import Candidate, native_candidates
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.declare import Op


def checks(subject: Subject) -> Iterator[Check]:
    """Refusals, required cases, signatures and the policy; see the functions below."""
    for op in subject.catalogue:
        natives = list(native_candidates(subject.backend, op))
        for candidate in natives:
            yield Check(
                id=f"limits/{op.name}/signature/{candidate.label}",
                family=op.family,
                run=partial(_called_like_the_op, candidate),
            )
        yield Check(id=f"limits/{op.name}/report", family=op.family, run=partial(_reported, subject, natives, op))
        for call in calls(op):
            for candidate in natives:
                if candidate.refusals(call):
                    yield Check(
                        id=f"limits/{call.name}/{candidate.label}",
                        family=op.family,
                        run=partial(_refused_in_words, subject, candidate, call),
                    )
            if natives and call.case.required:
                yield Check(id=f"limits/{call.name}/required", family=op.family, run=partial(_accepted, natives, call))
        if subject.policy is not FallbackPolicy.ALLOW_REFERENCE and not op.optional:
            yield Check(id=f"limits/{op.name}/policy", family=op.family, run=partial(_served, subject, op))


def _refused_in_words(subject: Subject, candidate: Candidate, call: Call) -> str:
    """Under policy strict the binder refuses the call, and names every limit that it breaks."""
    refusals = candidate.refusals(call)
    try:
        candidate.bind(call, place(call.inputs(), subject.device).arguments, FallbackPolicy.STRICT)
    except UnsupportedByBackend as error:
        missing = [text for text in refusals if text not in str(error)]
        expect(not missing, f"the refusal does not name {missing}: {error}")
        return "; ".join(refusals)
    raise ConformanceFailure(f"outside the limits ({'; '.join(refusals)}) the binder still ran the implementation")


def _accepted(natives: list[Candidate], call: Call) -> None:
    """A backend that implements an op serves every required case with one of its implementations."""
    refusals = [candidate.refusals(call) for candidate in natives]
    words = " | ".join("; ".join(texts) for texts in refusals)
    expect(
        not all(refusals),
        f"this case is required of every backend that implements {call.op.name}, and limits exclude it: {words}",
    )


def _called_like_the_op(candidate: Candidate) -> None:
    """An implementation takes the op's tensors in the op's order, and its attributes by name."""
    op, implementation = candidate.op, candidate.implementation
    if implementation is None:
        return
    tensors = {p.name: None for p in op.tensors}
    attributes = {a.name: None for a in op.attributes}
    plan = {"plan": None} if implementation.plan is not None else {}
    try:
        bound = inspect.signature(implementation.run).bind(*tensors.values(), **{**attributes, **plan})
        inspect.signature(implementation.run).bind(**{**tensors, **attributes, **plan})
    except TypeError as error:
        raise ConformanceFailure(
            f"cannot be called like {op.name}({', '.join(tensors)}, *, {', '.join(attributes)}): {error}"
        ) from error
    given = [name for name in bound.arguments if name in tensors]
    expect(
        given == [n for n in tensors if n in given],
        f"takes its tensors in the order {given}, the op has {list(tensors)}",
    )


def _reported(subject: Subject, natives: list[Candidate], op: Op[..., Any]) -> None:
    """For every case the binding report says what is run, and names each limit that kept an implementation out."""
    for call in calls(op):
        accepted = any(not candidate.refusals(call) for candidate in natives)
        row = _bind(subject, call, FallbackPolicy.ALLOW_REFERENCE)
        expect(
            accepted == (row.outcome == "native"),
            f"case {call.case.id}: limits {'accept' if accepted else 'refuse'} it, but the report says {row.outcome}",
        )
        unnamed = [text for c in natives if not accepted for text in c.refusals(call) if text not in row.reason]
        expect(not unnamed, f"case {call.case.id}: the report does not name {unnamed}, only {row.reason!r}")


def _served(subject: Subject, op: Op[..., Any]) -> None:
    """Under the policy that is asked for, every required case of the op can be bound."""
    for call in (c for c in calls(op) if c.case.required):
        try:
            _bind(subject, call, subject.policy)
        except UnsupportedByBackend as error:
            raise ConformanceFailure(f"case {call.case.id}: {error}") from error


def _bind(subject: Subject, call: Call, policy: FallbackPolicy) -> Row:
    """Bind a call to the whole backend, as the engine does; its row of the report."""
    arguments = place(call.inputs(), subject.device).arguments
    binder = Binder(subject.backend, policy, dtype=call.case.dtype)
    weights = {name: arguments.get(name) for name in call.op.weights}
    binder.bind(call.op, weights=weights, sizes=call.sizes, **call.attributes)
    (row,) = binder.finish().rows
    return row
