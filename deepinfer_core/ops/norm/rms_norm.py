"""Root-mean-square normalisation of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide


@op("norm.rms_norm", tolerance=Tolerance.one_rounding(), row_axis="T")
def rms_norm(
    x: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
    weight: Annotated[Tensor, Shape("H"), Dtypes("bf16", "f32")],
    *,
    eps: float,
) -> Tensor:
    """Scale each row to unit root-mean-square, then multiply by ``weight``.

    Wide arithmetic and one rounding at the end. A zero row gives zeros for any positive ``eps``
    (spec model/07 section 1; the released ``eps`` is 1e-20).
    """
    y = wide(x)
    scale = (y.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y * scale * weight.to(y.dtype)).to(x.dtype)


@rms_norm.cases
def _cases() -> Iterator[Case]:
    yield Case("one_row", T=1, H=5120, eps=1e-20, required=True, bench=True)
    yield Case("no_rows", T=0, H=128, eps=1e-20, required=True)
    yield Case("many_rows", T=67, H=256, eps=1e-6, required=True)
    yield Case("odd_width", T=3, H=257, eps=1e-6)
    yield Case("f32", T=5, H=256, eps=1e-20, dtype="f32")
    yield Case("zero_row", T=2, H=64, eps=1e-20, make=lambda d: {"x": d.normal("T", "H", scale=0.0)})
    yield ErrorCase(
        "weight_too_long", T=2, H=8, eps=1e-6, stretch=("weight", "H"), raises=ShapeError, match="weight has H=9"
    )
    yield ErrorCase(
        "integers", T=2, H=8, eps=1e-6, spoil=lambda a: a.update(x=a["x"].int()), raises=DtypeError, match="i32"
    )
