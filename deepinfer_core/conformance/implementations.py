"""The ways in which a backend can run an op: each native implementation, as steps, and by the reference.

Every way is bound by the engine's own :class:`Binder`, on a view of the backend whose table is narrowed to it;
so packing, planning, limits and the report are exercised exactly as at load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_core.backend.binding import Binder, BoundOp
from deepinfer_core.backend.interface import Backend, Implementation, OpTable
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.conformance.call import Call
from deepinfer_core.conformance.check import expect
from deepinfer_core.ops.declare import Op

_OUTCOMES = {"native": ("native",), "decomposed": ("decomposed", "reference"), "reference": ("reference",)}
"""What the report may say of each kind; steps whose limits all refuse the call are references in the end."""


class NarrowedBackend:
    """A backend with another table; everything else is its own."""

    def __init__(self, whole: Backend, table: OpTable) -> None:
        self.whole = whole
        self.name = whole.name
        self.table = table
        self.capabilities = whole.capabilities
        self.device = whole.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run one op.

    Attributes:
        op: The op.
        label: ``native`` (``native-2``, ... for further implementations), ``decomposed`` or ``reference``.
        backend: The backend, narrowed to this way.
        implementation: The native implementation, or None.
    """

    op: Op[..., Any]
    label: str
    backend: NarrowedBackend
    implementation: Implementation | None = None

    @property
    def kind(self) -> str:
        """``native``, ``decomposed`` or ``reference``."""
        return self.label.split("-")[0]

    def refusals(self, call: Call) -> list[str]:
        """Texts of the limits that exclude this call; empty when it is to be run."""
        limits = self.implementation.limits if self.implementation else ()
        site = call.site(self.backend.device().facts)
        return [text for limit in limits if (text := limit.refusal(site))]

    def bind(
        self, call: Call, arguments: Mapping[str, Any], policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE
    ) -> BoundOp:
        """Bind the op as the engine does, weights packed, and plan one step.

        Returns:
            The bound op, which takes the tensors that are not weights.

        Raises:
            UnsupportedByBackend: The policy refuses the outcome.
        """
        binder = Binder(self.backend, policy, dtype=call.case.dtype)
        weights = {name: arguments.get(name) for name in self.op.weights}
        bound = binder.bind(self.op, weights=weights, sizes=call.sizes, **call.attributes)
        (row,) = binder.finish().rows
        reported = (row.op, row.outcome)
        allowed = {(self.op.name, outcome) for outcome in _OUTCOMES[self.kind]}
        expect(
            reported in allowed,
            f"the binding report says {reported}, where {self.op.name} was bound to run {self.kind}",
        )
        for planned in binder.planned:
            if planned.planner is not None:
                planned.plan_value = planned.planner(call.plan_request())
        return bound


def native_candidates(backend: Backend, op: Op[..., Any]) -> Iterator[Candidate]:
    """Each implementation in the backend's table on its own, in the order in which the binder tries them."""
    for number, implementation in enumerate(backend.table.of(op), 1):
        label = "native" if number == 1 else f"native-{number}"
        narrowed = NarrowedBackend(backend, OpTable({op: (implementation,)}))
        yield Candidate(op=op, label=label, backend=narrowed, implementation=implementation)


def candidates(backend: Backend, call: Call) -> Iterator[Candidate]:
    """Every way in which the backend can run this call, limits respected.

    The reference on the backend's own device is always one of them: it is what the engine runs
    where nothing else is claimed.
    """
    op = call.op
    yield from (c for c in native_candidates(backend, op) if not c.refusals(call))
    if any(backend.table.of(part.op) for part in op.parts):
        others = {other: found for other, found in backend.table.entries.items() if other is not op}
        yield Candidate(op=op, label="decomposed", backend=NarrowedBackend(backend, OpTable(others)))
    yield Candidate(op=op, label="reference", backend=NarrowedBackend(backend, OpTable()))
