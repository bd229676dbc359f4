"""What every block of one model shares while the graph is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from deepinfer_core.ops.quantize.quantize import quantize

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.binding import Binder, BoundOp
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.numerics import Numerics
    from deepinfer_core.ops.declare import Op

Record = TypeVar("Record")


class Place(Protocol):
    """Moves a record of parameters, or one tensor, to where it is bound."""

    def __call__(self, record: Record) -> Record: ...


@dataclass(frozen=True, slots=True)
class Builder:
    """Architecture, arithmetic and binder; blocks bind their ops through it.

    Attributes:
        architecture: The model's shape.
        numerics: The run's arithmetic.
        binder: Where ops are bound.
        tables: Rotary tables: of layers without and with compressed entries.
        place: Called layer by layer, so that a device holds what was packed and one layer as it was stored, never the
            whole model twice.
    """

    architecture: ModelArchitecture
    numerics: Numerics
    binder: Binder
    tables: tuple[Tensor, Tensor]
    place: Place

    @property
    def act(self) -> str:
        """Element type of activations."""
        return self.numerics.activation

    @property
    def wide(self) -> str:
        """Element type of results that the model keeps unrounded."""
        return "f64" if self.act == "f64" else "f32"

    def bind(
        self,
        op: Op[..., Any],
        *,
        weights: dict[str, Any] | None = None,
        sizes: dict[str, int] | None = None,
        **attributes: Any,
    ) -> BoundOp:
        """See ``Binder.bind``."""
        return self.binder.bind(op, weights=weights, sizes=sizes, **attributes)

    def bind_cast(self) -> Any:
        """Rounds rows to MXFP8 where the arithmetic does, else hands them through."""
        if not self.numerics.quantize_activations:
            return _unchanged
        return self.bind(quantize, format="mxfp8")


def _unchanged(x: Tensor) -> Tensor:
    return x
