"""Notice when a native implementation quietly runs a reference."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from deepinfer_core.conformance.check import ConformanceFailure
from deepinfer_core.ops.declare import CompositeOp, Op


@contextmanager
def no_reference(op: Op[..., Any]) -> Generator[None]:
    """A scope in which running the reference of ``op``, or of one of its parts, is a failure.

    A backend that lacks an op says so by not listing it, and the binder reports the reference; an
    implementation that calls the reference itself hides the same fact from every report.

    Raises:
        ConformanceFailure: On leaving the scope, naming the references that ran.
    """
    watched = {_definition(o): o.name for o in (op, *(part.op for part in op.parts))}
    seen: list[str] = []

    def observe(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in watched:
            seen.append(watched[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        yield
    finally:
        sys.setprofile(before)
    if seen:
        names = ", ".join(sorted(set(seen)))
        raise ConformanceFailure(
            f"a native implementation ran the reference of {names}; leave the op out of the table, or state the limit"
        )


def _definition(op: Op[..., Any]) -> CodeType:
    """The code of the function that was decorated."""
    function = op.body if isinstance(op, CompositeOp) else op.reference
    return function.__code__
