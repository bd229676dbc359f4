"""Quantise and dequantise activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import DtypeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_blocks, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import QuantTensor


@op("quantize.quantize", tolerance=Tolerance.exact(), row_axis="T")
def quantize(
    x: Annotated[Tensor, Shape("T", "I"), Dtypes("bf16", "f32", "f64")],
    *,
    format: str,
) -> QuantTensor:
    """Round rows to a format with one scale per group of channels.

    Each row is quantised on its own; wide input is not rounded to bf16 on the way (spec model/03).

    Args:
        x: Rows; the width is a multiple of the format's group.
        format: ``mxfp8``, ``mxfp4`` or ``fp4_e4m3``.
    """
    return quantize_rows(x, FORMATS[format])


@op("quantize.dequantize", tolerance=Tolerance.exact(), row_axis="T")
def dequantize(
    x: Annotated[QuantTensor, Shape("T", "I"), Formats("mxfp8", "mxfp4", "fp4_e4m3")],
    *,
    out: str,
) -> Tensor:
    """Values of quantised rows in the element type ``out``; exact in bf16 and wider."""
    return dequantize_values(x, TORCH_DTYPES[out])


def _boundaries(draw: Draw) -> dict[str, Any]:
    """Groups whose maximum sits on, just below and just above a change of the scale, or beyond the largest one."""
    maxima = torch.tensor([448.0, 450.0, 1.0, 0.875, 1.75, 1.7578125, 1e-5, 6.0, 3.0, 2688.0, 5000.0])
    x = draw.uniform("T", "I", low=-1.0, high=1.0).reshape(len(maxima), -1)
    x[:, 0] = 1.0
    return {"x": (x * maxima[:, None]).reshape(draw.shape("TI")).to(torch.bfloat16)}


def _ties(draw: Draw) -> dict[str, Any]:
    """Every midpoint between 4-bit codes, both signs, with a group maximum that keeps the scale at 1."""
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    return {
        "x": torch.cat((midpoints, -midpoints, midpoints, -midpoints)).repeat(draw.sizes["T"], 1).to(torch.bfloat16)
    }


def _quantized(format: str) -> Any:
    return lambda draw: {"x": quantize_rows(draw.normal("T", "I", scale=3.0), FORMATS[format])}


@quantize.cases
def _quantize_cases() -> Iterator[Case]:
    for format in ("mxfp8", "mxfp4", "fp4_e4m3"):
        yield Case(f"{format}_rows", T=9, I=256, format=format, required=True)
        yield Case(f"{format}_f32", T=4, I=128, format=format, dtype="f32")
        yield Case(f"{format}_boundaries", T=11, I=32, format=format, make=_boundaries, required=True)
        yield Case(f"{format}_zero_rows", T=2, I=64, format=format, make=lambda d: {"x": d.normal("T", "I", scale=0.0)})
        yield Case(f"{format}_ties", T=2, I=32, format=format, make=_ties)
    yield Case("no_rows", T=0, I=64, format="mxfp8", required=True)
    yield Case("released_width", T=1, I=5120, format="mxfp8", bench=True)
    yield ErrorCase(
        "integers", T=2, I=32, format="mxfp8", spoil=lambda a: a.update(x=a["x"].int()), raises=DtypeError, match="i32"
    )


@dequantize.cases
def _dequantize_cases() -> Iterator[Case]:
    for format in ("mxfp8", "mxfp4", "fp4_e4m3"):
        yield Case(f"{format}_to_bf16", T=5, I=256, out="bf16", make=_quantized(format), required=True)
        yield Case(f"{format}_to_f32", T=3, I=64, out="f32", make=_quantized(format))
    yield Case("no_rows", T=0, I=64, out="bf16", make=_quantized("mxfp8"))
    yield Case("all_codes", T=16, I=32, out="f32", make=_all_codes, required=True)
    yield ErrorCase(
        "weight_format",
        T=32,
        I=32,
        out="bf16",
        make=lambda d: {"x": quantize_blocks(d.normal("T", "I"))},
        raises=DtypeError,
        match="fp8_block32",
    )


def _all_codes(draw: Draw) -> dict[str, Any]:
    """Row r holds code r in every even channel and code 15 - r in every odd one."""
    row = torch.arange(16, dtype=torch.uint8)
    data = (row | ((15 - row) << 4))[:, None].repeat(1, 16)
    scale = torch.full((16, 1), 127, dtype=torch.uint8)
    return {"x": QuantTensor(data, scale, "mxfp4")}
