"""Choose one callable per call site, once, at load; nothing is dispatched per step.

Outcomes: ``native`` (an implementation whose limits hold), ``decomposed`` (a composite run as steps),
``reference`` (the op's own body on the backend's device). Policy decides which are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer_core.backend.interface import Backend, Implementation, PlanRequest
from deepinfer_core.backend.report import BindingReport, Outcome, Row
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import InternalError, UnsupportedByBackend, require
from deepinfer_core.ops.declare import CompositeOp, Op, Part
from deepinfer_core.ops.limits import Site

Pack = Callable[[Mapping[str, Any], Site], Mapping[str, Any]]
Workspace = Callable[[PlanRequest, Site], int]


@dataclass(slots=True)
class BoundOp:
    """One op at one call site: call it with the remaining tensors.

    Attributes:
        op: What it computes.
        run: The chosen callable with weights and attributes applied.
        planner: Makes the ``plan`` argument of a step, or None.
        workspace: Bytes that a call takes besides its results, by the size of the step; None where nobody stated it.
    """

    op: Op[..., Any]
    run: Callable[..., Any]
    planner: Callable[[PlanRequest], Any] | None = None
    plan_value: Any = None
    workspace: Callable[[PlanRequest], int] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.planner is not None:
            return self.run(*args, plan=self.plan_value, **kwargs)
        return self.run(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the binder decided for one op at one site."""

    outcome: Outcome
    reason: str
    run: Callable[..., Any]
    pack: Pack
    planner: Callable[[PlanRequest], Any] | None
    row_invariant: bool
    workspace: Workspace | None = None


@dataclass
class Binder:
    """Binds call sites of one model to one backend and keeps the record.

    The graph asks for ops while it is built; :meth:`finish` raises if the policy was broken anywhere.

    Attributes:
        backend: Whose table is asked.
        policy: What is accepted besides native implementations.
        dtype: Element type in which activations flow.
        device_index: Which of the backend's devices.
        row_invariant: Bind only what gives a row the same bits in any company.
        weight_copies: What packing may keep of a weight (``EngineConfig.weight_copies``); sites have it as a fact.
        bound: Every bound op, in the order of binding.
        planned: Those of them that plan.
    """

    backend: Backend
    policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE
    dtype: str = "bf16"
    device_index: int = 0
    row_invariant: bool = False
    weight_copies: str = "auto"
    bound: list[BoundOp] = field(default_factory=list)
    planned: list[BoundOp] = field(default_factory=list)
    _record: dict[tuple[str, Outcome, str, bool], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._facts = {**self.backend.device(self.device_index).facts, "weight_copies": self.weight_copies}
        if self.weight_copies != "auto" and self.weight_copies not in self.backend.capabilities.weight_copies:
            known = ", ".join(self.backend.capabilities.weight_copies)
            raise UnsupportedByBackend(
                self.backend.name, [f"weight_copies={self.weight_copies!r} is not offered; choose one of {known}"]
            )

    def bind(
        self,
        op: Op[..., Any],
        *,
        weights: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        **attributes: Any,
    ) -> BoundOp:
        """A callable for ``op`` with attributes applied and weights packed.

        Args:
            op: The declared op.
            weights: Values of the op's weight parameters, as read from the checkpoint.
            sizes: Sizes of static axes that limits may ask about.
            **attributes: Values of the op's keyword-only parameters.
        """
        site = Site(dict(sizes or {}), attributes, self.dtype, self._facts)
        self._check_site(op, weights or {}, attributes)
        choice = self._choose(op, site)
        key = (op.name, choice.outcome, choice.reason, choice.row_invariant)
        self._record[key] = self._record.get(key, 0) + 1
        fixed = {**choice.pack(weights or {}, site), **attributes}
        run = choice.run

        def call(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **fixed, **kwargs)

        bound = BoundOp(op, call if fixed else run, choice.planner, workspace=_at_site(choice.workspace, site))
        self.bound.append(bound)
        if bound.planner is not None:
            self.planned.append(bound)
        return bound

    def finish(self) -> BindingReport:
        """The report; called when every call site is bound.

        Raises:
            UnsupportedByBackend: The policy refuses some outcome, or a row-invariant implementation is asked for and
                there is none; every such op is listed.
        """
        rows = [
            Row(name, outcome, reason, sites, invariant)
            for (name, outcome, reason, invariant), sites in sorted(self._record.items())
        ]
        problems = [
            f"{r.op} would run as {r.outcome} ({r.reason}); policy {self.policy.value!r} refuses it"
            for r in rows
            if not self.policy.accepts(r.outcome)
        ]
        if self.row_invariant:
            problems += [
                f"{r.op} would run as {r.outcome} ({r.reason}), which is not row-invariant; batch_invariant needs that"
                for r in rows
                if not r.row_invariant
            ]
        if problems:
            raise UnsupportedByBackend(self.backend.name, problems)
        name = self._facts.get("name", "unknown device")
        return BindingReport(self.backend.name, name, self.policy.value, tuple(rows))

    def _check_site(self, op: Op[..., Any], weights: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        known = {a.name for a in op.attributes}
        if set(attributes) - known or set(weights) != set(op.weights):
            given = f"attributes {sorted(attributes)} (known {sorted(known)})"
            raise InternalError(f"{op.name} bound with {given}, weights {sorted(weights)} (needs {sorted(op.weights)})")

    def _choose(self, op: Op[..., Any], site: Site) -> _Choice:
        native, why = self._native(op, site)
        if native is not None:
            invariant = is_row_invariant(op, native)
            pack = native.pack or _keep
            return _Choice("native", native.note, native.run, pack, native.plan, invariant, native.workspace)
        if isinstance(op, CompositeOp):
            return self._decompose(op, site, why)
        return _Choice("reference", why, op.reference, _keep, None, is_row_invariant(op, None))

    def _native(self, op: Op[..., Any], site: Site) -> tuple[Implementation | None, str]:
        """The first implementation whose limits hold, or the reasons why none does."""
        refusals: list[str] = []
        for implementation in self.backend.table.of(op):
            broken = [text for limit in implementation.limits if (text := limit.refusal(site))]
            if self.row_invariant and not is_row_invariant(op, implementation):
                broken.append("an implementation is not row-invariant")
            if not broken:
                return implementation, ""
            refusals += broken
        return None, "; ".join(refusals) or "no implementation"

    def _decompose(self, op: CompositeOp[..., Any], site: Site, why: str) -> _Choice:
        """Run a composite as steps, each step bound by the same rules."""
        chosen: dict[Op[..., Any], _Choice] = {}
        for part in op.parts:
            choice = self._choose(part.op, _part_site(part, site))
            if part.op not in chosen or choice.outcome == "reference":
                chosen[part.op] = choice
        outcomes = {c.outcome for c in chosen.values()}
        outcome: Outcome = "reference" if outcomes == {"reference"} else "decomposed"
        bare = sorted(p.name for p, c in chosen.items() if c.outcome == "reference")
        reason = f"{why}; steps by reference: {', '.join(bare)}" if bare and outcome == "decomposed" else why
        runs = {part: c.run for part, c in chosen.items()}
        body = op.body

        def run(*args: Any, **kwargs: Any) -> Any:
            return body(runs.__getitem__, *args, **kwargs)

        def pack(weights: Mapping[str, Any], outer: Site) -> Mapping[str, Any]:
            packed = dict(weights)
            for part in op.parts:
                mine = {inner: weights[name] for inner, name in part.weights.items() if weights.get(name) is not None}
                done = chosen[part.op].pack(mine, _part_site(part, outer))
                packed.update({part.weights[inner]: value for inner, value in done.items()})
            return packed

        # The composite hands its plan on to the step that plans; two such steps would need two plans.
        planners = [c.planner for c in chosen.values() if c.planner is not None]
        require(len(planners) <= 1, f"{op.name}: {len(planners)} steps want a plan, but a composite hands on one")
        planner = planners[0] if planners else None
        invariant = is_row_invariant(op, None) or all(c.row_invariant for c in chosen.values())
        return _Choice(outcome, reason, run, pack, planner, invariant)


def is_row_invariant(op: Op[..., Any], implementation: Implementation | None) -> bool:
    """Whether a row has the same bits in any company.

    An implementation says so itself. Where an op is exact there is one right result, whoever computes it, the
    reference included. An op without a row axis treats the rows of a sequence together: its results depend on that
    sequence, and there is no company to speak of.

    Args:
        op: What is computed.
        implementation: By what; None for the op's reference.
    """
    if implementation is not None and implementation.row_invariant:
        return True
    return op.tolerance.kind == "exact" or not (op.row_axis or op.parts)


def _part_site(part: Part, site: Site) -> Site:
    """The site of a part: the composite's sizes, renamed where the part says so."""
    sizes = {**site.sizes, **{inner: site.sizes[outer] for inner, outer in part.sizes.items() if outer in site.sizes}}
    attributes = {a.name: site.attributes[a.name] for a in part.op.attributes if a.name in site.attributes}
    return Site(sizes, attributes, site.dtype, site.facts)


def _keep(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    return dict(weights)


def _at_site(workspace: Workspace | None, site: Site) -> Callable[[PlanRequest], int] | None:
    """What a call takes there, by the size of the step; None where nobody stated it."""
    return None if workspace is None else lambda request: workspace(request, site)
