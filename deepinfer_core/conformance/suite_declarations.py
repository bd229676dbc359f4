"""The ops themselves: an op that is declared badly, or has no cases, would pass every other suite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from deepinfer_core.conformance.call import Call, calls
from deepinfer_core.conformance.check import Check, ConformanceFailure
from deepinfer_core.conformance.compare import compare_bits
from deepinfer_core.conformance.execute import observe_reference
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.ops.cases import ErrorCase
from deepinfer_core.ops.declare import Op


def checks(subject: Subject) -> Iterator[Check]:
    """``declarations/<op>``, ``declarations/<op>/<case>/valid`` and ``.../repeatable``."""
    for op in subject.catalogue:
        yield Check(id=f"declarations/{op.name}", family=op.family, run=partial(_complete, op))
        for call in calls(op):
            yield Check(id=f"declarations/{call.name}/valid", family=op.family, run=call.check)
            yield Check(id=f"declarations/{call.name}/repeatable", family=op.family, run=partial(_repeatable, call))


def _complete(op: Op[..., Any]) -> None:
    """Has a meaning, a case that no backend may exclude, an error case, and names only its own parameters."""
    names = {p.name for p in op.tensors}
    letters = {d for p in op.tensors if p.shape for d in p.shape.dims}
    cases = op.all_cases()
    problems = [
        f"{kind} names {sorted(set(given) - names)}, which are not its tensors"
        for kind, given in _named(op)
        if set(given) - names
    ]
    if not op.summary:
        problems.append("it has no docstring")
    if not any(case.required for case in cases):
        problems.append("none of its cases is required, so a backend could exclude them all")
    if op.tensors and not any(isinstance(case, ErrorCase) for case in cases):
        problems.append("it has no error case")
    if op.row_axis and op.row_axis not in letters:
        problems.append(f"its row axis {op.row_axis} is an axis of none of its tensors")
    if problems:
        raise ConformanceFailure(f"the declaration of {op.name} is incomplete: {'; '.join(problems)}")


def _named(op: Op[..., Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "mutates", op.mutates
    yield "weights", op.weights
    for part in op.parts:
        yield f"part {part.op.name}", tuple(part.weights.values())


def _repeatable(call: Call) -> None:
    """The oracle has one answer: run twice on equal inputs, it gives the same bits."""
    first, second = observe_reference(call), observe_reference(call)
    compare_bits(second.result, first.result, "the second result")
    compare_bits(tuple(second.mutated.values()), tuple(first.mutated.values()), "the second set of written arguments")
