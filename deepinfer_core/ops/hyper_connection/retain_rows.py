"""Part of the rows of a step, as far as the residual streams go: what layers on the end of a prompt continue with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("hyper_connection.retain_rows", tolerance=Tolerance.exact(), row_axis="R")
def retain_rows(
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")],
    mix: Annotated[Tensor, Shape("T", "C"), Dtypes("f32", "f64")],
    rows: Annotated[Tensor, Shape("R"), Dtypes("i32")],
) -> tuple[Tensor, Tensor]:
    """Streams and mixes of the listed rows, in the order of the list (spec attention/05 A.2, step 3).

    Args:
        streams: Streams of every row of the step.
        mix: The mix that the sub-layer before handed over, of every row.
        rows: Numbers of the rows to keep, each in ``0 .. T - 1``. They are not checked on the device: the host
            that listed them knows the step.

    Returns:
        Streams ``[R, C, H]`` and mixes ``[R, C]``, bit for bit.
    """
    return streams.index_select(0, rows), mix.index_select(0, rows)


def _inputs(draw: Draw) -> dict[str, Any]:
    """Rows in no order, some of them more than once where there are more than rows of the step."""
    order = torch.cat([draw.distinct(draw.sizes["T"], draw.sizes["T"]) for _ in range(3)])
    return {"rows": order[: draw.sizes["R"]]}


@retain_rows.cases
def _cases() -> Iterator[Case]:
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=70, R=rows, C=4, H=256, make=_inputs, required=True)
    yield Case("released", T=3, R=2, C=4, H=5120, make=_inputs, required=True, bench=True)
    yield Case("odd_width_f32", T=9, R=5, C=3, H=67, dtype="f32", make=_inputs)
    yield Case("one_stream", T=2, R=6, C=1, H=64, make=_inputs)
    yield Case("f64", T=4, R=3, C=2, H=64, dtype="f64", make=_inputs)
    yield ErrorCase(
        "mix", T=4, R=2, C=4, H=8, make=_inputs, stretch=("mix", "T"), raises=ShapeError, match="mix has T=5"
    )
    yield ErrorCase(
        "rows_int64",
        T=4,
        R=2,
        C=4,
        H=8,
        make=_inputs,
        spoil=lambda a: a.update(rows=a["rows"].long()),
        raises=DtypeError,
        match="i64",
    )
