"""Steps are recorded once and replayed: an op reads its inputs again at each replay, and asks the host nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance.call import Call, Inputs, calls
from deepinfer_core.conformance.check import Check
from deepinfer_core.conformance.compare import compare
from deepinfer_core.conformance.execute import collect, observe_reference, run_bound
from deepinfer_core.conformance.guard import place
from deepinfer_core.conformance.implementations import Candidate, candidates
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.conformance.values import replace_tensors


def checks(subject: Subject) -> Iterator[Check]:
    """``capture/<op>/<case>/<way>`` for every required case; references may be part of a step as well."""
    for op in subject.catalogue:
        for call in (c for c in calls(op) if c.case.required):
            for candidate in candidates(subject.backend, call):
                run = partial(_replays, subject, candidate, call)
                yield Check(id=f"capture/{call.name}/{candidate.label}", family=op.family, run=run)


def _replays(subject: Subject, candidate: Candidate, call: Call) -> None:
    """Record on one set of inputs; replay on another one, and then on the first again."""
    placement = place(call.inputs(), subject.device)
    bound = candidate.bind(call, placement.arguments)
    results: dict[str, Any] = {}

    def work() -> None:
        results["latest"] = run_bound(candidate, bound, placement)

    work()  # what is compiled or allocated on first use is ready now
    with subject.device.no_sync():
        work()
    graph = subject.device.capture(work)
    for wanted in (_other_inputs(call), call):
        placement.overwrite(wanted.inputs())
        with subject.device.no_sync():
            graph.replay()
        subject.device.synchronize()
        compare(collect(candidate, placement, results["latest"]), observe_reference(wanted), call.op.tolerance)


def _other_inputs(call: Call) -> Call:
    """Valid inputs of the same shapes: rows in reverse or, where rows are not independent, activations halved."""
    if call.rows > 1:
        return call.with_rows(torch.arange(call.rows).flip(0))
    return call.changed(partial(_halve, call))


def _halve(call: Call, inputs: Inputs) -> Inputs:
    def half(tensor: Tensor) -> Tensor:
        return tensor * 0.5 if tensor.dtype in (torch.bfloat16, torch.float32, torch.float64) else tensor

    return {name: value if name in call.op.weights else replace_tensors(value, half) for name, value in inputs.items()}
