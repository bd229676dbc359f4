"""What the draft module sees of a layer of the target model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide


@op("speculation.draft_features", tolerance=Tolerance.one_rounding(), row_axis="T")
def draft_features(streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")]) -> Tensor:
    """Return the mean ``[T, H]`` of a token's residual streams.

    Added in wide precision, rounded once to the type of the streams. The streams are those that enter the attention
    sub-layer, before its norm (spec model/09 section 1).
    """
    return wide(streams).mean(1).to(streams.dtype)


@draft_features.cases
def _cases() -> Iterator[Case]:
    yield Case("released", T=2, C=4, H=5120, required=True, bench=True)
    yield Case("no_rows", T=0, C=4, H=64, required=True)
    yield Case("many_rows", T=65, C=4, H=72, required=True)
    yield Case("one_stream", T=3, C=1, H=64)
    yield Case("f32", T=3, C=4, H=64, dtype="f32")
    yield Case("f64", T=3, C=4, H=64, dtype="f64")
    yield ErrorCase(
        "flat",
        T=2,
        C=4,
        H=8,
        spoil=lambda a: a.update(streams=a["streams"].flatten(1)),
        raises=ShapeError,
        match="streams",
    )
    yield ErrorCase(
        "half", T=2, C=4, H=8, spoil=lambda a: a.update(streams=a["streams"].half()), raises=DtypeError, match="f16"
    )
