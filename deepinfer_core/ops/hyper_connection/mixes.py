"""The mixing numbers of one sub-layer, and those of the head of models without shifted mixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide

_MIXES = Tolerance.elementwise(
    "sums of 4 H products in another order, tensor-core precision", f32=(1e-3, 1e-4), f64=(1e-9, 1e-10)
)


@op("hyper_connection.mixes", tolerance=_MIXES, row_axis="T")
def mixes(
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")],
    function: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    base: Annotated[Tensor, Shape("_"), Dtypes("f32")],
    scale: Annotated[Tensor, Shape(3), Dtypes("f32")],
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """How a sub-layer reads, writes and recombines the streams (spec model/04 section 2).

    One root-mean-square over all ``C H`` numbers of a row scales the projection ``function``; then
    ``pre = sigmoid + eps``, ``post = 2 sigmoid`` and a Sinkhorn-normalised combination.

    Args:
        streams: The streams as they enter the sub-layer.
        function: ``[C (C + 2), C H]``, rows for pre, post, combination (input stream outer).
        base: ``[C (C + 2)]``.
        scale: Factors of pre, post and combination.
        norm_eps: Epsilon of the root-mean-square.
        eps: Epsilon of the Sinkhorn steps and of ``pre``.
        iterations: Sinkhorn iterations.

    Returns:
        ``pre [T, C]``, ``post [T, C]``, ``combination [T, C, C]`` indexed [input, output], in wide precision.
    """
    count = streams.shape[1]
    z = _projection(streams, function, norm_eps)
    factor = torch.cat([part.expand(n) for part, n in zip(scale.split(1), (count, count, count**2), strict=True)])
    z = z * factor.to(z.dtype) + base.to(z.dtype)
    pre = torch.sigmoid(z[:, :count]) + eps
    post = 2.0 * torch.sigmoid(z[:, count : 2 * count])
    return pre, post, sinkhorn(z[:, 2 * count :].unflatten(-1, (count, count)), eps, iterations)


def sinkhorn(logits: Tensor, eps: float, iterations: int) -> Tensor:
    """Row softmax, then alternate column and row normalisation, columns first and last."""
    a = torch.softmax(logits, -1) + eps
    a = a / (a.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        a = a / (a.sum(-1, keepdim=True) + eps)
        a = a / (a.sum(-2, keepdim=True) + eps)
    return a


@op("hyper_connection.head_mix", tolerance=_MIXES, row_axis="T")
def head_mix(
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")],
    function: Annotated[Tensor, Shape("C", "_"), Dtypes("f32")],
    base: Annotated[Tensor, Shape("C"), Dtypes("f32")],
    scale: Annotated[Tensor, Shape(1), Dtypes("f32")],
    *,
    norm_eps: float,
    eps: float,
) -> Tensor:
    """The mix that collapses the final streams when mixes are not shifted (spec model/04 section 5)."""
    z = _projection(streams, function, norm_eps)
    return torch.sigmoid(z * scale.to(z.dtype) + base.to(z.dtype)) + eps


def _projection(streams: Tensor, function: Tensor, norm_eps: float) -> Tensor:
    """``function`` applied to the row of all streams, divided by its root-mean-square."""
    flat = wide(streams).flatten(1)
    inverse = (flat.square().mean(-1, keepdim=True) + norm_eps).rsqrt()
    return (flat @ function.to(flat.dtype).T) * inverse


def draw_mixes(draw: Draw) -> dict[str, Any]:
    """Parameters of a sub-layer's mixes for cases."""
    count, width = draw.sizes["C"], draw.sizes["C"] * draw.sizes["H"]
    return {
        "function": draw.normal(count * (count + 2), width, dtype="f32", scale=width**-0.5),
        "base": draw.normal(count * (count + 2), dtype="f32"),
        "scale": draw.uniform(3, low=0.2, high=1.0),
    }


def _head_inputs(draw: Draw) -> dict[str, Any]:
    width = draw.sizes["C"] * draw.sizes["H"]
    return {"function": draw.normal("C", width, dtype="f32", scale=width**-0.5)}


def _four_scales(draw: Draw) -> dict[str, Any]:
    return {**draw_mixes(draw), "scale": draw.uniform(4)}


@mixes.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"norm_eps": 1e-20, "eps": 1e-6, "iterations": 20, "make": draw_mixes}
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, C=4, H=128, required=True, **settings)
    yield Case("two_streams", T=3, C=2, H=64, **settings)
    yield Case("one_iteration", T=3, C=4, H=64, **dict(settings, iterations=1))
    yield Case("f32", T=3, C=4, H=64, dtype="f32", **settings)
    yield ErrorCase(
        "scale",
        T=2,
        C=2,
        H=8,
        **dict(settings, make=_four_scales),
        raises=ShapeError,
        match="3",
    )


@head_mix.cases
def _head_cases() -> Iterator[Case]:
    yield Case("rows", T=5, C=4, H=64, norm_eps=1e-20, eps=1e-6, make=_head_inputs, required=True)
    yield Case("no_rows", T=0, C=4, H=64, norm_eps=1e-20, eps=1e-6, make=_head_inputs, required=True)
    yield ErrorCase(
        "base",
        T=2,
        C=4,
        H=8,
        norm_eps=1e-6,
        eps=1e-6,
        make=_head_inputs,
        stretch=("base", "C"),
        raises=ShapeError,
        match="C=5",
    )
