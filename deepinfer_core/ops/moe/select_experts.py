"""Which experts a token goes to, and with what weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Part, Shape, Use, composite, op
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide

_ROUTE = Tolerance.elementwise("square root and logarithm", f32=(1e-5, 1e-6), f64=(1e-12, 1e-12))


@op("moe.select_experts", tolerance=_ROUTE, row_axis="T")
def select_experts(
    logits: Annotated[Tensor, Shape("T", "E"), Dtypes("f32", "f64")],
    bias: Annotated[Tensor, Shape("E"), Dtypes("f32")],
    *,
    experts_per_token: int,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """The ``experts_per_token`` best experts by biased score, weighed by their unbiased scores.

    ``score = sqrt(softplus(logit))``; weights are normalised over the selection and multiplied by
    ``scaling`` (spec model/05 section 1). Larger biased score first, the smaller index among equals.

    Returns:
        Expert ids ``[T, K]`` int32 and weights ``[T, K]`` in wide precision.
    """
    score = softplus(wide(logits), threshold=20.0).sqrt()
    order = torch.sort(score + bias.to(score.dtype), dim=-1, descending=True, stable=True).indices[
        :, :experts_per_token
    ]
    chosen = score.gather(1, order)
    return order.to(torch.int32), chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling


@composite(
    "moe.route",
    parts=(Part(linear, sizes={"I": "H", "O": "E"}, weights={"weight": "router"}), select_experts),
    tolerance=_ROUTE,
    row_axis="T",
    weights=("router",),
)
def route(
    use: Use,
    x: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
    bias: Annotated[Tensor, Shape("E"), Dtypes("f32")],
    router: Annotated[Tensor, Shape("E", "H"), Dtypes("bf16", "f32")],
    *,
    experts_per_token: int,
    scaling: float,
    logits_dtype: str = "f32",
) -> tuple[Tensor, Tensor]:
    """Router logits in ``logits_dtype`` from the unquantised row, then ``moe.select_experts``."""
    logits = use(linear)(x, weight=router, out=logits_dtype)
    return use(select_experts)(logits, bias, experts_per_token=experts_per_token, scaling=scaling)


def _tied(draw: Draw) -> dict[str, Any]:
    """Few distinct logits and no bias: most selections are tied at the edge."""
    return {"logits": draw.integers(0, 2, "T", "E").float(), "bias": torch.zeros(draw.sizes["E"])}


def _extreme(draw: Draw) -> dict[str, Any]:
    return {"logits": draw.normal("T", "E", dtype="f32", scale=40.0)}


@select_experts.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"experts_per_token": 3, "scaling": 1.5}
    yield Case("rows", T=33, E=16, required=True, **settings)
    yield Case("ties_take_the_smaller_index", T=20, E=16, make=_tied, required=True, **settings)
    yield Case("extreme_logits", T=9, E=16, make=_extreme, **settings)
    yield Case("all_experts", T=2, E=3, **settings)
    yield Case("no_rows", T=0, E=16, required=True, **settings)
    yield Case("released", T=1, E=384, experts_per_token=6, scaling=1.5, bench=True)
    yield ErrorCase("bias", T=2, E=8, stretch=("bias", "E"), raises=ShapeError, match="bias has E=9", **settings)


@route.cases
def _route_cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"experts_per_token": 3, "scaling": 1.5}
    yield Case("rows", T=33, E=16, H=64, required=True, **settings)
    yield Case("no_rows", T=0, E=16, H=64, required=True, **settings)
    yield ErrorCase("hidden", T=2, E=8, H=8, stretch=("x", "H"), raises=ShapeError, match="router has H=8", **settings)
