"""Compare what an implementation left behind with what the reference did, and explain the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance.check import ConformanceFailure, expect
from deepinfer_core.conformance.execute import Observation
from deepinfer_core.conformance.values import as_bytes
from deepinfer_core.errors import require
from deepinfer_core.ops.contract import dtype_name
from deepinfer_core.ops.quantize.quantize import dequantize
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import Cache, QuantTensor

_ENOUGH_TO_SCATTER = 256
_SHARED_PART = 0.25
"""Share of the tolerance that the elements of a large tensor may be off by in common; truncation needs this much."""


def compare(actual: Observation, expected: Observation, tolerance: Tolerance) -> None:
    """Raise unless result and written arguments agree within the op's tolerance.

    Raises:
        ConformanceFailure: Naming the first bad coordinate, both values, the error in units of the
            tolerance and the share of bad elements.
    """
    compare_values(actual.result, expected.result, tolerance, "result")
    for name, value in expected.mutated.items():
        compare_values(actual.mutated[name], value, tolerance, name)


def compare_bits(actual: Any, expected: Any, label: str) -> None:
    """Raise unless two values have the same types, shapes and bits."""
    compare_values(actual, expected, Tolerance.exact(), label)


def compare_values(actual: Any, expected: Any, tolerance: Tolerance, label: str) -> None:
    """Raise unless two values - tensors, quantised tensors, caches, tuples of them, None - agree."""
    for part, mine, theirs in _pairs(actual, expected, tolerance, label):
        _compare_tensors(mine, theirs, tolerance, part)


def _pairs(actual: Any, expected: Any, tolerance: Tolerance, label: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Tensors to be compared with each other, with their labels."""
    if isinstance(expected, tuple):
        expect(
            isinstance(actual, tuple) and len(actual) == len(expected),
            f"{label}: got {_kind(actual)}, expected {_kind(expected)}",
        )
        for position, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(mine, theirs, tolerance, f"{label}[{position}]")
    elif isinstance(expected, QuantTensor):
        yield from _quantized_pairs(actual, expected, tolerance, label)
    elif isinstance(expected, Cache):
        yield f"{label}.storage", actual.storage, expected.storage
    elif isinstance(expected, Tensor):
        expect(isinstance(actual, Tensor), f"{label}: got {_kind(actual)}, expected a tensor")
        yield label, actual, expected
    else:
        expect(actual == expected, f"{label}: got {actual!r}, expected {expected!r}")


def _quantized_pairs(
    actual: Any, expected: QuantTensor, tolerance: Tolerance, label: str
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Codes and scales, of which a tolerance that is not exact lets a share differ; their values too in that case.

    An implementation with storage of its own arrives here as values, dequantised by its own backend.
    """
    if isinstance(actual, QuantTensor):
        expect(actual.format == expected.format, f"{label}: got format {actual.format}, expected {expected.format}")
        yield f"{label}.data", actual.data.view(torch.uint8), expected.data.view(torch.uint8)
        yield f"{label}.scale", actual.scale, expected.scale
        if tolerance.kind == "exact":
            return
        actual = dequantize(actual, out="f32")
    expect(isinstance(actual, Tensor), f"{label}: got {_kind(actual)}, expected a quantised tensor")
    yield f"{label} (values)", actual, dequantize(expected, out="f32")


def _kind(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__


def _compare_tensors(actual: Tensor, expected: Tensor, tolerance: Tolerance, label: str) -> None:
    found, wanted = (dtype_name(actual), tuple(actual.shape)), (dtype_name(expected), tuple(expected.shape))
    expect(found == wanted, f"{label}: got {found[0]} {found[1]}, expected {wanted[0]} {wanted[1]}")
    if not expected.numel():
        return
    if tolerance.kind == "exact" or not expected.dtype.is_floating_point:
        differs = (as_bytes(actual) != as_bytes(expected)).any(1)
        units = torch.where(differs, torch.inf, 0.0)
        outliers = tolerance.outliers if expected.dtype == torch.uint8 else 0.0
        _require_within(units, actual, expected, label, "the bits must agree", outliers)
        return
    require(wanted[0] in tolerance.bounds, f"{label}: the op's tolerance has no bound for {wanted[0]}")
    first, second = tolerance.bounds[wanted[0]]
    if tolerance.kind == "distance":
        _require_distance(actual, expected, first, label)
        return
    units = _error_units(actual.double(), expected.double(), second + first * expected.double().abs())
    outliers = 0.0 if bool(units.isinf().any()) else tolerance.outliers  # NaN and infinities are no rounding matter
    _require_within(units, actual, expected, label, f"allowed: relative {first:g} + absolute {second:g}", outliers)
    _require_unbiased(actual.double().flatten(), expected.double().flatten(), first, second, label)


def _error_units(actual: Tensor, expected: Tensor, allowed: Tensor) -> Tensor:
    """Error in units of the allowed error, flat; infinite where only one side is NaN, or infinities differ."""
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    comparable = actual.isfinite() & expected.isfinite()
    units = torch.where(comparable, (actual - expected).abs() / allowed, torch.inf)
    return torch.where(same, 0.0, units).flatten()


def _require_unbiased(a: Tensor, b: Tensor, relative: float, absolute: float, label: str) -> None:
    """Rounding scatters around the right value: an error that all elements share is not rounding.

    Without this, a result that is one percent too large passes wherever single elements may be off by more.
    """
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    energy = float(b.dot(b))
    if len(b) < _ENOUGH_TO_SCATTER or energy == 0.0:
        return
    factor = float(a.dot(b)) / energy
    allowed = _SHARED_PART * (relative + absolute * float(b.abs().sum()) / energy)
    if abs(factor - 1.0) > allowed:
        raise ConformanceFailure(
            f"{label}: {len(b)} elements are each within the tolerance, but together they are off by the factor "
            f"{factor:.6g} (allowed: 1 +- {allowed:.3g}); rounding would scatter"
        )


def _require_distance(actual: Tensor, expected: Tensor, bound: float, label: str) -> None:
    """The scale-free distance of the finite numbers; all others must be the same on both sides.

    A distance of ``d`` means a root-mean-square error of about ``sqrt(2 d)`` root-mean-squares of the
    tensor, so that is the unit in which single elements are reported.
    """
    a, b = actual.double(), expected.double()
    finite = a.isfinite() & b.isfinite()
    x, y = a[finite], b[finite]
    energy = float(x.dot(x) + y.dot(y))
    distance = 1.0 - 2.0 * float(x.dot(y)) / energy if energy else 0.0
    unit = (y.square().mean().sqrt() * (2.0 * bound) ** 0.5) if y.numel() else torch.tensor(1.0)
    units = _error_units(a, b, unit)
    if not bool(units.isinf().any()) and distance <= bound:
        return
    _require_within(units, actual, expected, label, f"distance {distance:.3g} of the whole, allowed {bound:g}", 0.0)


def _require_within(units: Tensor, actual: Tensor, expected: Tensor, label: str, allowed: str, outliers: float) -> None:
    """Raise when more than the allowed share of elements is off by more than one unit."""
    bad = (units > 1.0).nonzero().flatten()
    share = len(bad) / len(units)
    if share <= outliers:
        return
    first, worst = int(bad[0]), int(units.argmax())
    raise ConformanceFailure(
        f"{label} differs first at {_coordinate(first, actual)}: got {_value(actual, first)}, "
        f"expected {_value(expected, first)}, {_off_by(float(units[first]))} ({allowed}); "
        f"{len(bad)} of {len(units)} elements are off ({100 * share:.3g} %, allowed {100 * outliers:g} %); "
        f"worst: {_off_by(float(units[worst]))} at {_coordinate(worst, actual)}"
    )


def _off_by(units: float) -> str:
    return "beyond any tolerance" if units == float("inf") else f"off by {units:.3g} tolerances"


def _coordinate(position: int, tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(position), tensor.shape))


def _value(tensor: Tensor, position: int) -> Any:
    return tensor.flatten()[position].item()
