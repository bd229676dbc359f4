"""How results are compared: the kind of comparison is part of an op's contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["exact", "elementwise", "distance"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A kind of comparison with its bounds and the reason for them.

    ``exact``: the same bits (integers, copies, quantised codes, caches). ``elementwise``:
    ``|a - b| <= absolute + relative * |b|`` for all but ``outliers`` of the elements. ``distance``: the
    scale-free ``1 - 2 a.b / (a.a + b.b)`` of the whole tensor (DeepGEMM's measure for low precision).

    Attributes:
        kind: The comparison.
        bounds: Element type of the result -> (relative, absolute), or (distance, 0).
        outliers: Share of elements that may miss the bounds, e.g. rounding ties.
        reason: Why not exact.
    """

    kind: Kind
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outliers: float = 0.0
    reason: str = ""

    @staticmethod
    def exact() -> Tolerance:
        """The same bits."""
        return Tolerance("exact")

    @staticmethod
    def elementwise(reason: str, outliers: float = 0.0, **bounds: tuple[float, float]) -> Tolerance:
        """Relative and absolute bound by element type of the result, e.g. ``bf16=(2**-7, 1e-3)``."""
        return Tolerance("elementwise", bounds, outliers, reason)

    @staticmethod
    def distance(reason: str, **bounds: float) -> Tolerance:
        """Bound of the scale-free distance by element type of the result."""
        return Tolerance("distance", {name: (bound, 0.0) for name, bound in bounds.items()}, 0.0, reason)

    @staticmethod
    def one_rounding(reason: str = "order of summation differs; one rounding at the end") -> Tolerance:
        """Equal up to one unit in the last place of the result's type and noise of wide sums."""
        return Tolerance("elementwise", {"bf16": (2**-7, 1e-3), "f32": (1e-4, 1e-5), "f64": (1e-9, 1e-10)}, 0.0, reason)
