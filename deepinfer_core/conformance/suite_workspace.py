"""Workspace: no call asks for more memory than its implementation states, and the statement grows with the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from deepinfer_core.backend.device import MeasuresAllocations
from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.conformance.call import Call, calls
from deepinfer_core.conformance.check import Check, expect
from deepinfer_core.conformance.execute import run_bound
from deepinfer_core.conformance.guard import place
from deepinfer_core.conformance.implementations import Candidate, native_candidates
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.conformance.values import tensors
from deepinfer_core.ops.limits import Site

_UNSTATED_BYTES = 1024
"""A few numbers of a call, such as a scalar for all rows, need not be stated."""
_LARGEST = 1 << 17
"""Rows, sequences and tokens up to which a statement is asked."""


def checks(subject: Subject) -> Iterator[Check]:
    """For each statement that it never shrinks, and where the device measures ``workspace/<op>/<case>/<way>``."""
    measures = isinstance(subject.device, MeasuresAllocations)
    yield Check(id="workspace/stated", family="device", run=partial(_stated_everywhere, subject, measures))
    for op in subject.catalogue:
        for candidate in filter(_states, native_candidates(subject.backend, op)):
            served = [call for call in calls(op) if not candidate.refusals(call)]
            if served:
                run = partial(_grows, subject, candidate, served[0])
                yield Check(id=f"workspace/{op.name}/growth/{candidate.label}", family=op.family, run=run)
            for call in served if measures else ():
                keeps = partial(_keeps, subject, candidate, call)
                yield Check(id=f"workspace/{call.name}/{candidate.label}", family=op.family, run=keeps)


def _stated_everywhere(subject: Subject, measures: bool) -> str:
    """Tells what the suite does not know: who states nothing, and whether anything can be compared."""
    natives = [c for op in subject.catalogue for c in native_candidates(subject.backend, op)]
    silent = [f"{c.op.name} ({c.label})" for c in natives if not _states(c)]
    words = [f"no workspace is stated by {', '.join(silent)}"] if silent else []
    words += [] if measures else ["this device does not measure what is allocated on it"]
    return "; ".join(words)


def _states(candidate: Candidate) -> bool:
    return candidate.implementation is not None and candidate.implementation.workspace is not None


def _grows(subject: Subject, candidate: Candidate, call: Call) -> str:
    """A larger step never needs less by the statement."""
    implementation = candidate.implementation
    if implementation is None:
        return ""
    site, request = call.site(subject.device.facts), call.plan_request()
    for axis in ("rows", "sequences", "max_context"):
        sizes = [0, *(1 << bit for bit in range(_LARGEST.bit_length()))]
        stated = [_stated(implementation, replace(request, **{axis: size}), site) for size in sizes]
        smaller = [size for size, before, after in zip(sizes[1:], stated, stated[1:], strict=False) if after < before]
        expect(
            not smaller, f"the workspace shrinks when {axis} grow to {smaller}: {dict(zip(sizes, stated, strict=True))}"
        )
    return ""


def _stated(implementation: Implementation, request: PlanRequest, site: Site) -> int:
    if implementation.workspace is None:
        return 0
    found: Any = implementation.workspace(request, site)
    expect(isinstance(found, int) and found >= 0, f"the workspace of {request} is {found!r}, not a number of bytes")
    return int(found)


def _keeps(subject: Subject, candidate: Candidate, call: Call) -> str:
    """What a call holds at once besides its arguments and its results is within the statement."""
    device, implementation = subject.device, candidate.implementation
    if implementation is None or not isinstance(device, MeasuresAllocations):
        return "not measured"
    placement = place(call.inputs(), device)
    bound = candidate.bind(call, placement.arguments)
    run_bound(candidate, bound, placement)  # what is compiled or kept on first use is there now
    results: list[Any] = []
    peak = device.peak_bytes(lambda: results.append(run_bound(candidate, bound, placement)))
    taken = peak - _new_bytes(results, placement.arguments)
    stated = _stated(implementation, call.plan_request(), call.site(device.facts))
    expect(
        taken <= stated + _UNSTATED_BYTES,
        f"a call took {taken} bytes besides its results, but states {stated} for {call.plan_request()}",
    )
    return ""


def _new_bytes(results: list[Any], arguments: dict[str, Any]) -> int:
    """Bytes of the storages of results that are not storages of arguments."""
    given = {id(tensor.untyped_storage()) for value in arguments.values() for _, tensor in tensors(value, "argument")}
    made = {id(tensor.untyped_storage()): tensor.untyped_storage() for _, tensor in tensors(results, "result")}
    return sum(storage.nbytes() for key, storage in made.items() if key not in given)
