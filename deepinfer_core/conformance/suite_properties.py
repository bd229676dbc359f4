"""What holds for every op without an oracle: rows, padding and memory layout change nothing they should not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance.call import Call, Inputs, calls, parameters_with
from deepinfer_core.conformance.check import Check, expect
from deepinfer_core.conformance.compare import compare, compare_bits, compare_values
from deepinfer_core.conformance.execute import Observation, observe, observe_reference
from deepinfer_core.conformance.implementations import Candidate, candidates
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.conformance.values import replace_tensors, tensors
from deepinfer_core.ops.declare import Op

PADDING_MARKERS = ("row_sequence", "slots")
"""Names that contracts give to the tensor that marks a row as padding with -1."""

_NUM_PADDING_ROWS = 3

Property = Callable[[Subject, Candidate, Call], str | None]


def checks(subject: Subject) -> Iterator[Check]:
    """``properties/<op>/<case>/<way>/<property>`` for every property that the op's declaration makes meaningful."""
    for op in subject.catalogue:
        for call in calls(op):
            for name, applies, prove in _PROPERTIES:
                if not applies(call):
                    continue
                for candidate in candidates(subject.backend, call):
                    yield Check(
                        id=f"properties/{call.name}/{candidate.label}/{name}",
                        family=op.family,
                        run=partial(prove, subject, candidate, call),
                    )


def _independent_rows(subject: Subject, candidate: Candidate, call: Call) -> None:
    """Rows in another order give the same rows in that order."""
    order = torch.arange(call.rows).roll(1).flip(0)
    expected = replace_tensors(observe_reference(call).result, lambda t: t.index_select(0, order))
    compare_values(
        observe(candidate, call.with_rows(order), subject.device).result,
        expected,
        call.op.tolerance,
        "result of reordered rows",
    )


def _no_rows(subject: Subject, candidate: Candidate, call: Call) -> None:
    """A call without any row is legal, and gives results without any row."""
    nothing = torch.arange(0)
    expected = replace_tensors(observe_reference(call).result, lambda t: t.index_select(0, nothing))
    compare_values(
        observe(candidate, call.with_rows(nothing), subject.device).result,
        expected,
        call.op.tolerance,
        "result of no rows",
    )


def _sliced_inputs(subject: Subject, candidate: Candidate, call: Call) -> None:
    """Inputs may be slices of wider tensors: rows that do not follow each other in memory."""
    compare(observe(candidate, call, subject.device, row_gap=True), observe_reference(call), call.op.tolerance)


def _poisoned_row(subject: Subject, candidate: Candidate, call: Call) -> None:
    """NaN in the last row stays visible there, and never reaches another row."""
    poisoned = call.changed(partial(_poison, call))
    actual, oracle = observe(candidate, poisoned, subject.device).result, observe_reference(poisoned).result
    clean = observe_reference(call).result
    others = torch.arange(call.rows - 1)
    kept = replace_tensors(clean, lambda t: t.index_select(0, others))
    compare_values(
        replace_tensors(actual, lambda t: t.index_select(0, others)),
        kept,
        call.op.tolerance,
        "rows beside a row of NaN",
    )
    for mine, theirs in _float_pairs(actual, oracle):
        hidden = theirs[-1].isnan() & mine[-1].isfinite()
        shown = mine[-1][hidden].flatten()[:1].tolist()
        expect(not shown, f"the result of a row of NaN is {shown}, where the reference keeps the NaN visible")


def _float_pairs(actual: Any, expected: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Plain tensors of numbers among the results; quantised ones cannot all hold NaN."""
    mine, theirs = (value if isinstance(value, tuple) else (value,) for value in (actual, expected))
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(b, Tensor) and b.dtype.is_floating_point:
            yield a, b


def _padding_rows(subject: Subject, candidate: Candidate, call: Call) -> str:
    """Rows marked -1 behind the real ones change no other row and no written argument."""
    padded = _padded(call, _NUM_PADDING_ROWS)
    if refusals := candidate.refusals(padded):
        return "; ".join(refusals)
    expected, actual = observe_reference(call), observe(candidate, padded, subject.device)
    real = _first_rows(actual.result, expected.result)
    compare(Observation(result=real, mutated=actual.mutated), expected, call.op.tolerance)
    return ""


def _padding_only(subject: Subject, candidate: Candidate, call: Call) -> None:
    """A call in which every row is marked -1 writes nothing at all."""
    marker = _marker(call.op)
    blank = call.changed(lambda inputs: {**inputs, marker: torch.full_like(inputs[marker], -1)})
    before = blank.inputs()
    for name, value in observe(candidate, blank, subject.device).mutated.items():
        compare_bits(value, before[name], f"{name} after a call of padding rows")


def _poison(call: Call, inputs: Inputs) -> Inputs:
    """NaN in the last row of the first float tensor that has the row axis."""
    name = _float_row_parameter(call)
    value = inputs[name].clone()
    value[-1] = torch.nan
    return {**inputs, name: value}


def _float_row_parameter(call: Call) -> str:
    inputs = call.inputs()
    for parameter in parameters_with(call.op, call.op.row_axis):
        value = inputs.get(parameter.name)
        first = parameter.shape is not None and parameter.shape.dims[0] == call.op.row_axis
        if first and isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float32, torch.float64):
            return parameter.name
    return ""


def _marker(op: Op[..., Any]) -> str:
    """The tensor that says which rows are padding, or an empty string."""
    one_axis = (p.name for p in op.tensors if p.shape is not None and len(p.shape.dims) == 1)
    return next((name for name in one_axis if name in PADDING_MARKERS), "")


def _padded(call: Call, count: int) -> Call:
    """The call with copies of its first row behind it, marked as padding."""
    marker = _marker(call.op)
    (letter,) = next(p.shape.dims for p in call.op.tensors if p.name == marker and p.shape)
    rows = call.sizes[str(letter)]
    longer = call.with_rows(torch.cat((torch.arange(rows), torch.zeros(count, dtype=torch.int64))), str(letter))

    def mark(inputs: Inputs) -> Inputs:
        flags = inputs[marker].clone()
        flags[rows:] = -1
        return {**inputs, marker: flags}

    return longer.changed(mark)


def _first_rows(actual: Any, expected: Any) -> Any:
    """``actual`` without the rows that padding added."""
    wanted = iter([t.shape for _, t in tensors(expected, "result")])

    def cut(tensor: Tensor) -> Tensor:
        shape = next(wanted)
        return tensor[: shape[0]] if tensor.shape[1:] == shape[1:] else tensor

    return replace_tensors(actual, cut)


def _has_rows(call: Call) -> bool:
    return call.rows > 1 and not call.op.mutates


def _can_be_poisoned(call: Call) -> bool:
    return _has_rows(call) and bool(_float_row_parameter(call))


def _can_be_padded(call: Call) -> bool:
    """Where rows carry a marker. There is no padding in a call that counts its rows on the host."""
    marker = _marker(call.op)
    return bool(marker) and len(call.inputs()[marker]) > 0 and call.attributes.get("query_lengths") is None


_PROPERTIES: tuple[tuple[str, Callable[[Call], bool], Property], ...] = (
    ("independent_rows", _has_rows, _independent_rows),
    ("no_rows", _has_rows, _no_rows),
    ("sliced_inputs", lambda call: call.case.required, _sliced_inputs),
    ("poisoned_row", _can_be_poisoned, _poisoned_row),
    ("padding_rows", _can_be_padded, _padding_rows),
    ("padding_only", lambda call: _can_be_padded(call) and bool(call.op.mutates), _padding_only),
)
