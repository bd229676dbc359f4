"""Read the table rows of every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import QuantTensor

_SCALE_ONE = 127
"""The ue8m0 byte of 1.0."""


@op("engram.lookup", tolerance=Tolerance.exact(), row_axis="T", weights=("table",))
def lookup(
    rows: Annotated[Tensor, Shape("T", "U"), Dtypes("i32")],
    table: Annotated[QuantTensor, Shape("V", "D"), Formats("mxfp8")],
) -> QuantTensor:
    """Concatenate the ``U`` table rows of each token to one quantised row ``[T, U * D]``.

    Stored bytes and scales are copied, nothing is rounded (spec model/06 section 5). Row -1 gives zeros with scale 1.

    Args:
        rows: Result of ``engram.hash_rows``: ``-1 <= row < table rows``; not checked on the device.
        table: One layer's n-gram memory.
    """
    missing = rows[..., None] < 0
    index = rows.long().clamp(min=0)
    values = table.data.view(torch.uint8)[index].masked_fill(missing, 0)
    scales = table.scale[index].masked_fill(missing, _SCALE_ONE)
    return QuantTensor(values.flatten(1).view(table.data.dtype), scales.flatten(1), table.format)


def _table(draw: Draw) -> dict[str, Any]:
    values = draw.normal("V", "D", dtype="f32", scale=30.0).to(torch.float8_e4m3fn)
    scales = draw.integers(100, 150, "V", draw.sizes["D"] // 32, dtype="u8")
    return {"rows": draw.integers(0, draw.sizes["V"], "T", "U"), "table": QuantTensor(values, scales, "mxfp8")}


def _some_missing(draw: Draw) -> dict[str, Any]:
    """Whole tokens without rows, and single rows that are the first and the last of the table."""
    made = _table(draw)
    made["rows"][::2] = -1
    made["rows"][1, 0] = 0
    made["rows"][1, 1] = draw.sizes["V"] - 1
    return made


@lookup.cases
def _cases() -> Iterator[Case]:
    yield Case("rows", T=7, U=6, D=128, V=50, make=_table, required=True)
    yield Case("released_width", T=3, U=24, D=256, V=2000, make=_table, required=True, bench=True)
    yield Case("no_rows", T=0, U=6, D=128, V=50, make=_table, required=True)
    yield Case("missing_rows", T=6, U=6, D=128, V=50, make=_some_missing, required=True)
    yield Case("one_group", T=2, U=1, D=32, V=3, make=_table)
    yield ErrorCase(
        "long_rows", T=2, U=6, D=32, V=9, make=_table,
        spoil=lambda a: a.update(rows=a["rows"].long()), raises=DtypeError, match="i64",
    )  # fmt: skip
    yield ErrorCase(
        "fp4_table", T=2, U=6, D=32, V=9, make=_table,
        spoil=lambda a: a.update(table=QuantTensor(a["table"].data, a["table"].scale, "mxfp4")),
        raises=DtypeError, match="mxfp4",
    )  # fmt: skip
    yield ErrorCase(
        "flat_rows", T=2, U=6, D=32, V=9, make=_table,
        spoil=lambda a: a.update(rows=a["rows"].flatten()), raises=ShapeError, match="needs 2 axes",
    )  # fmt: skip
