"""One page for each family of ops, from the declarations."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import InternalError
from deepinfer_core.ops import catalogue
from deepinfer_core.ops.axes import AXES, DYNAMIC
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import CompositeOp, Op, TensorParameter
from generator.markdown import Docstring, code, inline, page, parse_docstring, table

if TYPE_CHECKING:
    from deepinfer_core.ops.tolerance import Tolerance

_INTRODUCTION = """\
# Ops

Everything that a backend may implement, as it is declared in `deepinfer_core/ops`. An op's reference is its definition;
what these pages say is read from the declaration. How to add one: [add-an-op.md](../add-an-op.md). Who runs what
natively: [support-matrix.md](../support-matrix.md).

*spec model/07* and the like name pages of the specification from which the declaration was written; it is not part of
this repository."""

_AXES = """\
## Axis letters

A letter has one meaning in all contracts. Sizes of dynamic axes change from step to step; all others are fixed by the
model. `_` stands for any size."""


def op_pages() -> dict[str, str]:
    """Path below ``docs/`` -> text."""
    families: dict[str, list[Op[..., Any]]] = defaultdict(list)
    for op in catalogue():
        families[op.family].append(op)
    pages = {f"ops/{family}.md": _family_page(family, ops) for family, ops in families.items()}
    return {"ops/index.md": _index_page(families), **pages}


def _index_page(families: Mapping[str, Sequence[Op[..., Any]]]) -> str:
    lists = [
        f"## [{family}]({family}.md)\n\n"
        + table(("op", "what it does"), [(f"[{op.name}]({family}.md#{_anchor(op)})", inline(op.summary)) for op in ops])
        for family, ops in families.items()
    ]
    axes = [(code(letter), meaning, "dynamic" if letter in DYNAMIC else "") for letter, meaning in AXES.items()]
    count = sum(map(len, families.values()))
    return page(
        _INTRODUCTION,
        f"{count} ops in {len(families)} families.",
        *lists,
        _AXES,
        table(("letter", "meaning", ""), axes),
    )


def _family_page(family: str, ops: Sequence[Op[..., Any]]) -> str:
    links = " · ".join(f"[{op.name}](#{_anchor(op)})" for op in ops)
    return page(f"# Ops: {family}", f"[All families](index.md) · {links}", *map(_op_section, ops))


def _anchor(op: Op[..., Any]) -> str:
    """The fragment that Markdown viewers give to the heading of an op."""
    return op.name.replace(".", "")


def _op_section(op: Op[..., Any]) -> str:
    doc = parse_docstring(inspect.getdoc(op.reference) or "")
    function = _function(op)
    described = doc.items.get("Args", {})
    _check_described(op, described)
    parts = [
        f"## {op.name}",
        doc.summary,
        f"```text\n{_signature(op, function)}\n```",
        *doc.body,
        table(("tensor", "shape", "types", "", "meaning"), [_tensor_row(op, t, described) for t in op.tensors]),
        table(("attribute", "type", "default", "meaning"), _attribute_rows(op, function, described)),
        _results(doc),
        "\n".join(f"- {fact}" for fact in _facts(op)),
        _cases(op),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def _function(op: Op[..., Any]) -> Callable[..., Any]:
    """The function as it was written; the reference of a composite hides its parameters."""
    return op.body if isinstance(op, CompositeOp) else op.reference


def _check_described(op: Op[..., Any], described: Mapping[str, str]) -> None:
    known = {"use", *(t.name for t in op.tensors), *(a.name for a in op.attributes)}
    if unknown := set(described) - known:
        raise InternalError(f"the docstring of {op.name} describes {sorted(unknown)}, which are not its parameters")


def _signature(op: Op[..., Any], function: Callable[..., Any]) -> str:
    """The call as a line of Python without types: the table below has them."""
    signature = inspect.signature(function)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    shown = {n: n if d is inspect.Parameter.empty else f"{n}={d!r}" for n, d in defaults.items()}
    tensors, attributes = [shown[t.name] for t in op.tensors], [shown[a.name] for a in op.attributes]
    words = ", ".join([*tensors, *(["*", *attributes] if attributes else [])])
    return f"{op.name}({words}) -> {signature.return_annotation}"


def _tensor_row(op: Op[..., Any], tensor: TensorParameter, described: Mapping[str, str]) -> tuple[str, ...]:
    shape = "any" if tensor.shape is None else code("[" + ", ".join(map(str, tensor.shape.dims)) + "]")
    roles = [
        word
        for word, applies in (
            ("optional", tensor.optional),
            ("weight", tensor.name in op.weights),
            ("written", tensor.name in op.mutates),
        )
        if applies
    ]
    types = ", ".join([*tensor.dtypes, *tensor.formats])
    return code(tensor.name), shape, types, ", ".join(roles), described.get(tensor.name, "")


def _attribute_rows(
    op: Op[..., Any], function: Callable[..., Any], described: Mapping[str, str]
) -> list[tuple[str, ...]]:
    parameters = inspect.signature(function).parameters
    return [
        (
            code(a.name),
            code(parameters[a.name].annotation),
            "" if a.required else code(repr(a.default)),
            described.get(a.name, ""),
        )
        for a in op.attributes
    ]


def _results(doc: Docstring) -> str:
    return f"Returns: {doc.sections['Returns']}" if "Returns" in doc.sections else ""


def _facts(op: Op[..., Any]) -> list[str]:
    """What the decorator states, one line for each thing."""
    facts = [f"Compared with the reference: {_tolerance(op.tolerance)}."]
    if op.row_axis:
        facts.append(f"Rows along `{op.row_axis}` do not depend on each other.")
    facts.append(f"Written in place: {', '.join(map(code, op.mutates))}." if op.mutates else "Writes no argument.")
    if op.weights:
        facts.append(f"Weights, which a backend may `pack`: {', '.join(map(code, op.weights))}.")
    if op.parts:
        facts.append(f"Composite; its steps: {', '.join(_steps(op))}.")
    elif op.optional:
        facts.append("Optional: a backend is complete without it.")
    facts.append(f"Version {op.version} of the contract, declared in `{op.reference.__module__}`.")
    return facts


def _steps(op: Op[..., Any]) -> list[str]:
    """Links to the parts of a composite, each with how often it stands in the declaration."""
    counts = Counter(part.op for part in op.parts)
    return [
        f"[{part.name}]({part.family}.md#{_anchor(part)})" + (f" ({count} times)" if count > 1 else "")
        for part, count in counts.items()
    ]


def _tolerance(tolerance: Tolerance) -> str:
    if tolerance.kind == "exact":
        return "exact, the same bits"
    bounds = ", ".join(_bound(tolerance, name, *numbers) for name, numbers in tolerance.bounds.items())
    share = f"; {tolerance.outliers:.1%} of the elements may be outside" if tolerance.outliers else ""
    return f"{tolerance.kind}, {bounds}{share} ({tolerance.reason})"


def _bound(tolerance: Tolerance, name: str, relative: float, absolute: float) -> str:
    if tolerance.kind == "distance":
        return f"{name} {relative:.3g}"
    return f"{name} {absolute:.3g} + {relative:.3g} of the value"


def _cases(op: Op[..., Any]) -> str:
    """Valid and invalid calls that every implementation is tried with."""
    cases = op.all_cases()
    valid = [case for case in cases if not isinstance(case, ErrorCase)]
    wrong = [case for case in cases if isinstance(case, ErrorCase)]
    return "\n".join(
        [
            table(("case", "sizes", "attributes", "activations", ""), [_case_row(case) for case in valid]),
            table(("invalid call", "fault", "raises", "message contains"), [_error_row(case) for case in wrong]),
        ]
    )


def _case_row(case: Case) -> tuple[str, ...]:
    sizes = ", ".join(f"{letter}={size}" for letter, size in case.sizes.items())
    attributes = ", ".join(f"{name}={value!r}" for name, value in case.attributes.items())
    marks = ", ".join(word for word, applies in (("required", case.required), ("timed", case.bench)) if applies)
    return code(case.id), code(sizes), code(attributes), case.dtype, marks


def _error_row(case: ErrorCase) -> tuple[str, ...]:
    fault = f"`{case.stretch[0]}` is one longer along {case.stretch[1]}" if case.stretch else "an argument is spoiled"
    return code(case.id), fault, code(case.raises.__name__), code(case.match)
