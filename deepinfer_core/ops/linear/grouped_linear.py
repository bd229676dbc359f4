"""Independent linear maps per group of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.linear.linear import fp8_weight
from deepinfer_core.ops.quantize.rounding import dense, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide_dtype
from deepinfer_core.tensor import QuantTensor


@op("linear.grouped_linear", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("weight",))
def grouped_linear(
    x: Annotated[Tensor | QuantTensor, Shape("T", "I"), Dtypes("bf16", "f32", "f64"), Formats("mxfp8")],
    weight: Annotated[Tensor | QuantTensor, Shape("O", "_"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    *,
    groups: int,
    out: str,
) -> Tensor:
    """A block-diagonal linear map: output rows of group ``g`` see only input channels of group ``g``.

    The first half of the attention output projection (spec attention/01 section 8).

    Args:
        x: Rows of ``groups * width`` channels, group after group.
        weight: ``[groups * rank, width]``: the maps of all groups stacked along the rows.
        groups: Number of groups.
        out: Element type of the result ``[T, groups * rank]``.
    """
    dtype = wide_dtype(x, out)
    rows = dense(x, dtype).unflatten(-1, (groups, -1))
    maps = dense(weight, dtype).unflatten(0, (groups, -1))
    return torch.einsum("tgi,goi->tgo", rows, maps).flatten(1).to(TORCH_DTYPES[out])


def _fp8(draw: Draw) -> dict[str, Any]:
    x = quantize_rows(draw.normal("T", "I"), FORMATS["mxfp8"])
    return {"x": x, "weight": fp8_weight(draw, "O", draw.sizes["I"] // 2)}


def _dense(draw: Draw) -> dict[str, Any]:
    return {"weight": draw.normal("O", draw.sizes["I"] // 4)}


@grouped_linear.cases
def _cases() -> Iterator[Case]:
    for rows in (0, 1, 67):
        yield Case(f"fp8_{rows}_rows", T=rows, I=256, O=64, groups=2, out="bf16", make=_fp8, required=True)
    yield Case("dense_four_groups", T=5, I=64, O=32, groups=4, out="bf16", make=_dense)
    yield Case("f32", T=5, I=64, O=32, groups=4, out="f32", make=_dense, dtype="f32")
    yield ErrorCase(
        "rank",
        T=2,
        I=64,
        O=32,
        groups=4,
        out="bf16",
        make=lambda d: {"x": d.normal("T", "I", 1), **_dense(d)},
        raises=ShapeError,
        match="axes",
    )
