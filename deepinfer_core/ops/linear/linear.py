"""Linear maps with dense, FP8 or FP4 weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.quantize.rounding import dense, quantize_blocks, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide_dtype
from deepinfer_core.tensor import QuantTensor


@op("linear.linear", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("weight",))
def linear(
    x: Annotated[Tensor | QuantTensor, Shape("T", "I"), Dtypes("bf16", "f32", "f64"), Formats("mxfp8")],
    weight: Annotated[Tensor | QuantTensor, Shape("O", "I"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    *,
    out: str,
) -> Tensor:
    """``x @ weight.T`` with wide accumulation of exact products and one rounding to ``out``.

    Quantised operands are dequantised exactly; only the order of summation is left open (spec model/03
    section 3).

    Args:
        x: Rows, dense or MXFP8.
        weight: Dense, or FP8 with one power-of-two scale per 32x32 block.
        out: Element type of the result: that of the activations, or ``f32`` where the model keeps the sum.
    """
    dtype = wide_dtype(x, out)
    return (dense(x, dtype) @ dense(weight, dtype).T).to(TORCH_DTYPES[out])


def fp8_weight(draw: Draw, *shape: str | int) -> QuantTensor:
    """A random FP8 weight for cases."""
    return quantize_blocks(draw.normal(*shape, dtype="f32", scale=0.2))


def mxfp8_rows(draw: Draw, *shape: str | int) -> QuantTensor:
    """Random MXFP8 rows for cases."""
    return quantize_rows(draw.normal(*shape), FORMATS["mxfp8"])


def _fp8(draw: Draw) -> dict[str, Any]:
    return {"x": mxfp8_rows(draw, "T", "I"), "weight": fp8_weight(draw, "O", "I")}


def _fp8_weight_only(draw: Draw) -> dict[str, Any]:
    return {"weight": fp8_weight(draw, "O", "I")}


@linear.cases
def _cases() -> Iterator[Case]:
    for rows in (0, 1, 5, 64, 67):
        yield Case(f"fp8_{rows}_rows", T=rows, I=128, O=96, out="bf16", make=_fp8, required=True)
    yield Case("fp8_weight_bf16_rows", T=3, I=64, O=64, out="bf16", make=_fp8_weight_only)
    yield Case("dense_bf16", T=4, I=96, O=40, out="bf16", required=True)
    yield Case("dense_to_f32", T=4, I=96, O=40, out="f32", required=True)
    yield Case("dense_f32", T=4, I=96, O=40, out="f32", dtype="f32")
    yield Case("fp8_f32", T=4, I=96, O=64, out="f32", dtype="f32", make=_fp8_weight_only)
    yield ErrorCase(
        "inner_size", T=2, I=32, O=32, out="bf16", stretch=("x", "I"), raises=ShapeError, match="weight has I=32"
    )
    yield ErrorCase(
        "row_scaled_weight",
        T=2,
        I=32,
        O=32,
        out="bf16",
        make=lambda d: {"weight": mxfp8_rows(d, "O", "I")},
        raises=DtypeError,
        match="mxfp8",
    )
