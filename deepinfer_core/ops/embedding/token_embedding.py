"""Token ids to embedding rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("embedding.token_embedding", tolerance=Tolerance.exact(), row_axis="T", weights=("table",))
def token_embedding(
    ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    table: Annotated[Tensor, Shape("V", "H"), Dtypes("bf16", "f32")],
    *,
    out: str,
) -> Tensor:
    """Row ``ids[t]`` of the table in the element type ``out``; ids outside the table give zero rows."""
    known = (ids >= 0) & (ids < table.shape[0])
    rows = table[ids.clamp(0, table.shape[0] - 1).long()].to(TORCH_DTYPES[out])
    return torch.where(known[:, None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _ids(draw: Draw) -> dict[str, Any]:
    return {"ids": draw.integers(-2, draw.sizes["V"] + 2, "T")}


@token_embedding.cases
def _cases() -> Iterator[Case]:
    yield Case("with_unknown_ids", T=33, V=20, H=64, out="bf16", make=_ids, required=True)
    yield Case("no_rows", T=0, V=20, H=64, out="bf16", make=_ids, required=True)
    yield Case("to_f32", T=5, V=20, H=64, out="f32", make=_ids, dtype="f32")
    yield ErrorCase(
        "float_ids",
        T=2,
        V=8,
        H=8,
        out="bf16",
        make=lambda d: {"ids": d.normal("T", dtype="f32")},
        raises=DtypeError,
        match="f32",
    )
