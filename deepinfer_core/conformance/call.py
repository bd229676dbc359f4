"""One call of an op: inputs that can be made afresh any number of times, and changed in ways that keep it valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.errors import ContractError
from deepinfer_core.ops import contract
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Op, TensorParameter
from deepinfer_core.ops.limits import Site
from deepinfer_core.tensor import QuantTensor

Inputs = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A valid call of an op, as data.

    Attributes:
        op: What is called.
        case: The case that it comes from.
        changes: Applied in order to the case's inputs.
    """

    op: Op[..., Any]
    case: Case
    changes: tuple[Callable[[Inputs], Inputs], ...] = field(default=())

    def inputs(self) -> Inputs:
        """Tensor arguments by name on the host; new ones on each call, always with the same values."""
        made = self.case.inputs(self.op)
        for change in self.changes:
            made = change(made)
        return made

    def changed(self, change: Callable[[Inputs], Inputs]) -> Call:
        """The same call with its inputs changed."""
        return replace(self, changes=(*self.changes, change))

    @property
    def name(self) -> str:
        """``family.op/case``, the middle of a check's id."""
        return f"{self.op.name}/{self.case.id}"

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.case.attributes

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Size of each axis letter: as the tensors have it, else as the case states it."""
        try:
            return {**self.case.sizes, **contract.check(self.op, (), {**self.inputs(), **self.attributes})}
        except ContractError:  # the suites call check() themselves and report this
            return self.case.sizes

    @property
    def rows(self) -> int:
        """Rows that the op declares independent of each other; 0 when it declares no row axis."""
        return self.sizes.get(self.op.row_axis, 0)

    def check(self) -> None:
        """Raise :class:`ContractError` unless the inputs keep the op's contract."""
        contract.check(self.op, (), {**self.inputs(), **self.attributes})

    def site(self, facts: Mapping[str, str]) -> Site:
        """What limits are asked about."""
        return Site(self.sizes, self.attributes, self.case.dtype, facts)

    def plan_request(self) -> PlanRequest:
        """The step that this call could be part of."""
        rows = self.sizes.get("T", self.sizes.get("B", 1))
        sequences = self.sizes.get("B", rows)
        entries = self.sizes.get("J", 0) * self.sizes.get("P", 0)  # the block table may have room for more than is used
        return PlanRequest(
            rows=rows,
            sequences=sequences,
            max_context=max(_longest(self.inputs()), entries),
            prefill=rows > sequences,
        )

    def with_rows(self, chosen: Tensor, axis: str = "") -> Call:
        """The call on the rows listed (any order, any number, repeats allowed); other tensors stay.

        Args:
            chosen: Indices of rows.
            axis: Axis letter of the rows; the op's row axis by default.
        """
        letter = axis or self.op.row_axis
        parameters = tuple(parameters_with(self.op, letter))

        def select(inputs: Inputs) -> Inputs:
            picked = {
                p.name: _pick(inputs[p.name], p, letter, chosen) for p in parameters if inputs.get(p.name) is not None
            }
            return {**inputs, **picked}

        return self.changed(select)


def calls(op: Op[..., Any]) -> Iterator[Call]:
    """Every valid case of an op as a call."""
    for case in op.all_cases():
        if not isinstance(case, ErrorCase):
            yield Call(op=op, case=case)


def parameters_with(op: Op[..., Any], letter: str) -> Iterator[TensorParameter]:
    """Parameters that have an axis of this letter."""
    return (p for p in op.tensors if p.shape is not None and letter in p.shape.dims)


def _pick(value: Any, parameter: TensorParameter, letter: str, chosen: Tensor) -> Any:
    axis = parameter.shape.dims.index(letter) if parameter.shape else 0
    return value[chosen] if isinstance(value, QuantTensor) else value.index_select(axis, chosen)


def _longest(inputs: Inputs) -> int:
    """An upper bound of the context length: one more than the largest index, position or length given."""
    integers = [
        v for v in inputs.values() if isinstance(v, Tensor) and v.dtype in (torch.int32, torch.int64) and v.numel()
    ]
    return max((int(v.max()) + 1 for v in integers), default=1)
