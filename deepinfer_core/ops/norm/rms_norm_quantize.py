"""Norm and quantise in one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, Use, composite
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import QuantTensor

_CODES = Tolerance.elementwise(
    "a code may flip where the normed value is on a boundary", 0.01, bf16=(2**-3, 1e-3), f32=(2**-3, 1e-3)
)


@composite("norm.rms_norm_quantize", parts=(rms_norm, quantize), tolerance=_CODES, row_axis="T")
def rms_norm_quantize(
    use: Use,
    x: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
    weight: Annotated[Tensor, Shape("H"), Dtypes("bf16", "f32")],
    *,
    eps: float,
    format: str,
) -> QuantTensor:
    """``norm.rms_norm`` rounded to the type of ``x``, then ``quantize.quantize`` of the rounded row."""
    return use(quantize)(use(rms_norm)(x, weight, eps=eps), format=format)


@rms_norm_quantize.cases
def _cases() -> Iterator[Case]:
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, H=128, eps=1e-20, format="mxfp8", required=True)
    yield ErrorCase(
        "weight",
        T=2,
        H=32,
        eps=1e-6,
        format="mxfp8",
        stretch=("weight", "H"),
        raises=ShapeError,
        match="weight has H=33",
    )
