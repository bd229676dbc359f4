"""Plant a backend with one wrong implementation, run the whole kit on it, and say which suites failed for which op."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.conformance.check import Result
from deepinfer_core.conformance.implementations import NarrowedBackend
from deepinfer_core.conformance.runner import run_checks
from deepinfer_core.conformance.subject import subject_of
from deepinfer_core.conformance.suites import all_checks
from deepinfer_core.ops.declare import CompositeOp, Op
from deepinfer_core.reference.backend import CpuBackend


@dataclass(frozen=True)
class Kit:
    """The conformance kit, run on the CPU backend with another table."""

    def results(self, entries: Mapping[Op[..., Any], Implementation]) -> list[Result]:
        """Everything the kit finds out about these implementations; what it says of the references is left out."""
        table = OpTable({op: (implementation,) for op, implementation in entries.items()})
        subject = subject_of(NarrowedBackend(CpuBackend(), table), tuple(entries))
        checks = (c for c in all_checks(subject) if c.suite != "declarations" and "/reference" not in c.id)
        return list(run_checks(checks, today=date(2026, 1, 1), accelerator="planted"))

    def failures(self, entries: Mapping[Op[..., Any], Implementation]) -> list[Result]:
        return [result for result in self.results(entries) if result.status == "failed"]

    def failing(self, entries: Mapping[Op[..., Any], Implementation]) -> set[str]:
        """``suite/op`` of every failed check."""
        return {"/".join(result.id.split("/")[:2]) for result in self.failures(entries)}


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
def right() -> Callable[[Op[..., Any]], Callable[..., Any]]:
    """A native implementation that is right: the reference's body under a name of its own, so not the reference."""

    def copy(op: Op[..., Any]) -> Callable[..., Any]:
        source = op.body if isinstance(op, CompositeOp) else op.reference
        code = source.__code__.replace(co_name=f"native_{source.__name__}")
        made = types.FunctionType(code, source.__globals__, code.co_name, source.__defaults__, source.__closure__)
        made.__kwdefaults__ = source.__kwdefaults__
        return made

    return copy
