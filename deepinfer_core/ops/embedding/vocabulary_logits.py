"""Hidden rows to vocabulary logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide


@op("embedding.vocabulary_logits", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("head",))
def vocabulary_logits(
    x: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
    head: Annotated[Tensor, Shape("V", "H"), Dtypes("bf16", "f32")],
) -> Tensor:
    """``x @ head.T`` in wide precision; float32 logits (float64 for float64 rows), never rounded to bf16."""
    y = wide(x)
    return y @ head.to(y.dtype).T


@vocabulary_logits.cases
def _cases() -> Iterator[Case]:
    yield Case("rows", T=5, H=64, V=100, required=True)
    yield Case("no_rows", T=0, H=64, V=100, required=True)
    yield Case("f32", T=3, H=64, V=33, dtype="f32")
    yield ErrorCase("hidden", T=2, H=8, V=8, stretch=("x", "H"), raises=ShapeError, match="head has H=8")
