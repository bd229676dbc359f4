"""Everything between two sub-layers on the way in: mixes, collapse, norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, Use, composite
from deepinfer_core.ops.hyper_connection.mixes import draw_mixes, mixes
from deepinfer_core.ops.hyper_connection.streams import collapse
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.tolerance import Tolerance


@composite(
    "hyper_connection.enter",
    parts=(mixes, collapse, rms_norm),
    tolerance=Tolerance.elementwise("mixes by tensor cores", f32=(1e-3, 1e-4), f64=(1e-9, 1e-10), bf16=(2**-6, 1e-2)),
    row_axis="T",
)
def enter(
    use: Use,
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")],
    mix: Annotated[Tensor, Shape("T", "C"), Dtypes("f32", "f64")],
    function: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    base: Annotated[Tensor, Shape("_"), Dtypes("f32")],
    scale: Annotated[Tensor, Shape(3), Dtypes("f32")],
    norm_weight: Annotated[Tensor, Shape("H"), Dtypes("bf16", "f32")],
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
    shifted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normed input of a sub-layer, and its mixes (spec model/04 section 4).

    The streams are collapsed with the mix that the previous sub-layer handed over (``shifted``, V4.1) or
    with this sub-layer's own (V4).

    Returns:
        Normed input ``[T, H]``, ``pre``, ``post``, ``combination`` as in ``hyper_connection.mixes``.
    """
    pre, post, combination = use(mixes)(
        streams, function, base, scale, norm_eps=norm_eps, eps=eps, iterations=iterations
    )
    collapsed = use(collapse)(streams, mix if shifted else pre)
    return use(rms_norm)(collapsed, norm_weight, eps=norm_eps), pre, post, combination


@enter.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"norm_eps": 1e-20, "eps": 1e-6, "iterations": 20, "make": draw_mixes}
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, C=4, H=128, required=True, **settings)
    yield Case("own_mix", T=3, C=4, H=64, shifted=False, **settings)
    yield Case("f32", T=3, C=2, H=64, dtype="f32", **settings)
    yield ErrorCase(
        "norm_weight",
        T=2,
        C=2,
        H=8,
        stretch=("norm_weight", "H"),
        raises=ShapeError,
        match="norm_weight has H=9",
        **settings,
    )
