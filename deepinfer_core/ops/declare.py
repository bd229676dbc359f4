"""How an op is declared: one typed function is contract, meaning, reference and source of cases.

The signature carries shapes and element types, the docstring the meaning, the body is the reference.
Positional parameters are tensors; keyword-only parameters are static attributes, fixed at binding.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from deepinfer_core.errors import InternalError
from deepinfer_core.ops.axes import AXES
from deepinfer_core.ops.tolerance import Tolerance

if typing.TYPE_CHECKING:
    from deepinfer_core.ops.cases import Case, ErrorCase

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Shape:
    """Axis letters (:mod:`deepinfer_core.ops.axes`), fixed sizes, or ``"_"`` for any size."""

    dims: tuple[str | int, ...]

    def __init__(self, *dims: str | int) -> None:
        unknown = [d for d in dims if isinstance(d, str) and d != "_" and d not in AXES]
        if unknown:
            raise InternalError(f"axis letters {unknown} are not in deepinfer_core.ops.axes")
        object.__setattr__(self, "dims", dims)


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Element types (:data:`deepinfer_core.dtypes.ITEM_BYTES`) that a tensor may have."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True, slots=True)
class Formats:
    """Quantised formats that a ``QuantTensor`` or ``Cache`` may have."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True, slots=True)
class TensorParameter:
    """One positional parameter of an op."""

    name: str
    shape: Shape | None
    dtypes: tuple[str, ...]
    formats: tuple[str, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Attribute:
    """One keyword-only parameter of an op: a static value, fixed when the op is bound."""

    name: str
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Part:
    """An op that a composite calls, and how the composite's sizes and weights map onto it.

    Attributes:
        op: The op that is called.
        sizes: Axis of the part -> axis of the composite, where the letters differ.
        weights: Weight parameter of the part -> weight parameter of the composite.
    """

    op: Op[..., Any]
    sizes: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Op(Generic[P, R]):
    """A declared op. Calling it runs the reference.

    Attributes:
        name: ``family.op``.
        reference: The body: device-agnostic torch, the definition of the result.
        tensors: Positional parameters in order.
        attributes: Keyword-only parameters.
        tolerance: How results of another implementation are compared with the reference.
        row_axis: Axis along which rows are independent of each other, or "" if there is none.
        mutates: Parameters that are written in place; everything else must stay as it was.
        weights: Parameters that pass through a backend's ``pack``.
        optional: True when a backend may lack it without being called incomplete.
        version: Raised when the contract changes.
    """

    name: str
    reference: Callable[P, R]
    tensors: tuple[TensorParameter, ...]
    attributes: tuple[Attribute, ...]
    tolerance: Tolerance
    row_axis: str = ""
    mutates: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    optional: bool = False
    version: int = 1
    _cases: Callable[[], Iterator[Case | ErrorCase]] | None = field(default=None, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.reference(*args, **kwargs)

    @property
    def family(self) -> str:
        return self.name.split(".")[0]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.reference) or "").split("\n")[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        return ()

    def cases(self, make: Callable[[], Iterator[Case | ErrorCase]]) -> Callable[[], Iterator[Case | ErrorCase]]:
        """Decorator: register the generator that yields this op's cases."""
        self._cases = make
        return make

    def all_cases(self) -> list[Case | ErrorCase]:
        """Every case and error case, with ids checked for uniqueness."""
        found = list(self._cases()) if self._cases else []
        ids = [case.id for case in found]
        if len(set(ids)) != len(ids):
            raise InternalError(f"{self.name}: case ids repeat: {sorted(ids)}")
        return found


Use = Callable[[Op[..., Any]], Callable[..., Any]]
"""What a composite receives: turns a part into whatever is bound for it."""


@dataclass(eq=False)
class CompositeOp(Op[P, R]):
    """An op defined by steps. A backend implements the whole, or core runs the steps with its parts."""

    body: Callable[..., R] = field(kw_only=True, repr=False)
    steps: tuple[Part, ...] = field(kw_only=True)

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.steps


def op(
    name: str,
    *,
    tolerance: Tolerance,
    row_axis: str = "",
    mutates: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    optional: bool = False,
    version: int = 1,
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declare an op from its reference; see :class:`Op` for the arguments."""

    def declare(function: Callable[P, R]) -> Op[P, R]:
        tensors, attributes = _parse(name, function, skip=0)
        return Op(name, function, tensors, attributes, tolerance, row_axis, mutates, weights, optional, version)

    return declare


def composite(
    name: str,
    *,
    parts: tuple[Op[..., Any] | Part, ...],
    tolerance: Tolerance,
    row_axis: str = "",
    mutates: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    version: int = 1,
) -> Callable[[Callable[typing.Concatenate[Use, P], R]], CompositeOp[P, R]]:
    """Declare a composite; its function takes ``use`` first. A backend may always lack it whole."""

    def declare(function: Callable[typing.Concatenate[Use, P], R]) -> CompositeOp[P, R]:
        tensors, attributes = _parse(name, function, skip=1)

        def reference(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(_reference_of, *args, **kwargs)

        reference.__doc__ = function.__doc__
        reference.__module__ = function.__module__
        steps = tuple(p if isinstance(p, Part) else Part(p) for p in parts)
        return CompositeOp(
            name=name,
            reference=reference,
            tensors=tensors,
            attributes=attributes,
            tolerance=tolerance,
            row_axis=row_axis,
            mutates=mutates,
            weights=weights,
            optional=True,
            version=version,
            body=function,
            steps=steps,
        )

    return declare


def _reference_of(part: Op[..., Any]) -> Callable[..., Any]:
    return part.reference


def _parse(
    name: str, function: Callable[..., Any], skip: int
) -> tuple[tuple[TensorParameter, ...], tuple[Attribute, ...]]:
    """Read tensors and attributes from an annotated signature."""
    hints = typing.get_type_hints(function, include_extras=True)
    tensors: list[TensorParameter] = []
    attributes: list[Attribute] = []
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            attributes.append(Attribute(parameter.name, parameter.default))
            continue
        hint = hints.get(parameter.name)
        if typing.get_origin(hint) is not typing.Annotated:
            raise InternalError(f"{name}: parameter {parameter.name!r} needs Annotated[..., Shape(...), Dtypes(...)]")
        tensors.append(_tensor_parameter(parameter.name, hint))
    return tuple(tensors), tuple(attributes)


def _tensor_parameter(name: str, hint: Any) -> TensorParameter:
    inner, *notes = typing.get_args(hint)
    shape = next((n for n in notes if isinstance(n, Shape)), None)
    dtypes = next((n.names for n in notes if isinstance(n, Dtypes)), ())
    formats = next((n.names for n in notes if isinstance(n, Formats)), ())
    return TensorParameter(name, shape, dtypes, formats, type(None) in typing.get_args(inner))
