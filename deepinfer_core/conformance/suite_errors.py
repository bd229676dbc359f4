"""Every invalid call is refused by the contract check, with the right exception and in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from deepinfer_core.conformance.check import Check, ConformanceFailure, expect
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import ContractError
from deepinfer_core.ops import contract
from deepinfer_core.ops.cases import ErrorCase
from deepinfer_core.ops.declare import Op


def checks(subject: Subject) -> Iterator[Check]:
    """``errors/<op>/<error case>``: the call is refused before any implementation sees it."""
    for op in subject.catalogue:
        for case in op.all_cases():
            if isinstance(case, ErrorCase):
                yield Check(id=f"errors/{op.name}/{case.id}", family=op.family, run=partial(_refused, op, case))


def _refused(op: Op[..., Any], case: ErrorCase) -> None:
    inputs = case.inputs(op)
    try:
        contract.check(op, (), {**inputs, **case.attributes})
    except ContractError as error:
        expect(
            isinstance(error, case.raises),
            f"raised {type(error).__name__} where the case expects {case.raises.__name__}: {error}",
        )
        expect(case.match in str(error), f"the message lacks {case.match!r}: {error}")
        expect(op.name in str(error), f"the message does not name the op: {error}")
        return
    raise ConformanceFailure(
        f"the contract of {op.name} accepts a call that the case says is wrong; it should raise {case.raises.__name__}"
    )
