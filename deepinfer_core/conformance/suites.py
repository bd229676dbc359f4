"""The list of suites. To add one: a module with ``checks(subject) -> Iterator[Check]``, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from deepinfer_core.conformance import (
    suite_backend,
    suite_capture,
    suite_declarations,
    suite_errors,
    suite_invariance,
    suite_limits,
    suite_ops,
    suite_properties,
    suite_workspace,
)
from deepinfer_core.conformance.check import Check
from deepinfer_core.conformance.subject import Subject

Suite = Callable[[Subject], Iterator[Check]]

SUITES: Mapping[str, Suite] = {
    "backend": suite_backend.checks,
    "declarations": suite_declarations.checks,
    "errors": suite_errors.checks,
    "limits": suite_limits.checks,
    "ops": suite_ops.checks,
    "invariance": suite_invariance.checks,
    "properties": suite_properties.checks,
    "capture": suite_capture.checks,
    "workspace": suite_workspace.checks,
}
"""Name (the first word of its checks' ids) -> suite, from single parts to whole flows."""


def all_checks(subject: Subject, names: Sequence[str] = tuple(SUITES)) -> Iterator[Check]:
    """The checks of the suites named, in that order."""
    for name in names:
        yield from SUITES[name](subject)
