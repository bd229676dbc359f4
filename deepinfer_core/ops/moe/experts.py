"""Routed experts, the shared expert and their sum (spec model/05)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Part, Shape, Use, composite, op
from deepinfer_core.ops.linear.linear import fp8_weight, linear, mxfp8_rows
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.quantize.rounding import dense, dequantize_values, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide, wide_dtype, wide_name
from deepinfer_core.tensor import QuantTensor

_MLP = Tolerance.elementwise(
    "an FP8 code of the inner row may flip", 0.01, bf16=(2**-6, 2e-2), f32=(1e-4, 1e-5), f64=(1e-9, 1e-10)
)


@op("moe.swiglu", tolerance=Tolerance.one_rounding("exponential"), row_axis="T")
def swiglu(
    gate_up: Annotated[Tensor, Shape("T", "_"), Dtypes("bf16", "f32", "f64")],
    row_weight: Annotated[Tensor | None, Shape("T"), Dtypes("f32", "f64")] = None,
    *,
    limit: float | None,
    out: str,
) -> Tensor:
    """``silu(gate) * up * row_weight`` with clamps: gate from above, up from both sides.

    Args:
        gate_up: ``[T, 2 F]``, gate channels first.
        row_weight: Routing weight of each row, applied before the result is rounded.
        limit: Clamp, or None for none.
        out: Element type of the result: wide (quantised by the caller) or that of the activations.
    """
    gate, up = wide(gate_up).chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    result = gate / (1.0 + torch.exp(-gate)) * up
    if row_weight is not None:
        result = result * row_weight.unsqueeze(-1).to(result.dtype)
    return result.to(TORCH_DTYPES[out])


@op("moe.expert_mlp", tolerance=_MLP, row_axis="T", weights=("gate_up", "down"))
def expert_mlp(
    x: Annotated[Tensor | QuantTensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64"), Formats("mxfp8")],
    ids: Annotated[Tensor, Shape("T", "K"), Dtypes("i32")],
    weights: Annotated[Tensor, Shape("T", "K"), Dtypes("f32", "f64")],
    gate_up: Annotated[Tensor | QuantTensor, Shape("E", "_", "H"), Dtypes("bf16", "f32"), Formats("mxfp4")],
    down: Annotated[Tensor | QuantTensor, Shape("E", "H", "_"), Dtypes("bf16", "f32"), Formats("mxfp4")],
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """Each token through each of its experts: gate and up, SwiGLU with clamp, routing weight, down.

    Args:
        x: Rows, quantised once for all experts where the arithmetic quantises activations.
        ids: Experts of each row; -1 gives a zero row.
        weights: Routing weights, applied before the inner row is quantised.
        gate_up: ``[E, 2 F, H]``, gate rows first.
        down: ``[E, H, F]``.
        limit: SwiGLU clamp, or None.
        quantize_inner: Round the inner row to MXFP8.
        round_inner: Round the inner row to ``out`` first (other engines).
        out: Element type of the results.

    Returns:
        ``[T, K, H]``: one rounded result per row and slot.
    """
    dtype = wide_dtype(x, out)
    rows = dense(x, dtype)
    result = torch.zeros(*ids.shape, x.shape[-1], dtype=TORCH_DTYPES[out], device=ids.device)
    for expert in range(gate_up.shape[0]):
        hit = ids == expert
        row_weight = (weights * hit).sum(-1)
        inner = (rows @ dense(gate_up[expert], dtype).T).to(result.dtype)
        inner = swiglu.reference(inner, row_weight, limit=limit, out=out if round_inner else wide_name(out))
        if quantize_inner:
            inner = dequantize_values(quantize_rows(inner, FORMATS["mxfp8"]), dtype)
        output = (inner.to(dtype) @ dense(down[expert], dtype).T).to(result.dtype)
        result = torch.where(hit.unsqueeze(-1), output.unsqueeze(1), result)
    return result


@op("moe.combine", tolerance=Tolerance.one_rounding(), row_axis="T")
def combine(
    routed: Annotated[Tensor, Shape("T", "K", "H"), Dtypes("bf16", "f32", "f64")],
    shared: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
) -> Tensor:
    """Shared expert plus routed experts in slot order, wide sum, one rounding."""
    total = wide(shared)
    for slot in range(routed.shape[1]):
        total = total + wide(routed[:, slot])
    return total.to(shared.dtype)


@composite(
    "moe.expert_layer",
    parts=(
        Part(expert_mlp, weights={"gate_up": "gate_up", "down": "down"}),
        Part(linear, sizes={"I": "H"}, weights={"weight": "shared_gate_up"}),
        Part(linear, sizes={"I": "F", "O": "H"}, weights={"weight": "shared_down"}),
        swiglu,
        quantize,
        combine,
    ),
    tolerance=_MLP,
    row_axis="T",
    weights=("gate_up", "down", "shared_gate_up", "shared_down"),
)
def expert_layer(
    use: Use,
    x: Annotated[Tensor | QuantTensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64"), Formats("mxfp8")],
    ids: Annotated[Tensor, Shape("T", "K"), Dtypes("i32")],
    weights: Annotated[Tensor, Shape("T", "K"), Dtypes("f32", "f64")],
    gate_up: Annotated[Tensor | QuantTensor, Shape("E", "_", "H"), Dtypes("bf16", "f32"), Formats("mxfp4")],
    down: Annotated[Tensor | QuantTensor, Shape("E", "H", "_"), Dtypes("bf16", "f32"), Formats("mxfp4")],
    shared_gate_up: Annotated[Tensor | QuantTensor, Shape("_", "H"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    shared_down: Annotated[Tensor | QuantTensor, Shape("H", "_"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """The whole mixture after routing: routed experts, the shared expert (weight 1) and their sum."""
    settings: dict[str, Any] = {
        "limit": limit,
        "quantize_inner": quantize_inner,
        "round_inner": round_inner,
        "out": out,
    }
    routed = use(expert_mlp)(x, ids, weights, gate_up=gate_up, down=down, **settings)
    inner = use(linear)(x, weight=shared_gate_up, out=out)
    inner = use(swiglu)(inner, limit=limit, out=out if round_inner else wide_name(out))
    if quantize_inner:
        inner = use(quantize)(inner, format="mxfp8")
    shared = use(linear)(inner, weight=shared_down, out=out)
    return use(combine)(routed, shared)


def draw_experts(draw: Draw) -> dict[str, Any]:
    """Quantised rows and weights, ids with a skipped slot."""
    experts, inner = draw.sizes["E"], draw.sizes["F"]
    scores = draw.uniform("T", "E")
    ids = scores.topk(draw.sizes["K"], -1).indices.to(torch.int32)
    if len(ids):
        ids[0, -1] = -1
    return {
        "x": mxfp8_rows(draw, "T", "H"),
        "ids": ids,
        "weights": draw.uniform("T", "K"),
        "gate_up": quantize_rows(draw.normal(experts, 2 * inner, "H", dtype="f32", scale=0.2), FORMATS["mxfp4"]),
        "down": quantize_rows(draw.normal(experts, "H", inner, dtype="f32", scale=0.2), FORMATS["mxfp4"]),
        "shared_gate_up": fp8_weight(draw, 2 * inner, "H"),
        "shared_down": fp8_weight(draw, "H", inner),
    }


def _plain(draw: Draw) -> dict[str, Any]:
    """Rows that are not quantised."""
    return {**draw_experts(draw), "x": draw.normal("T", "H")}


@swiglu.cases
def _swiglu_cases() -> Iterator[Case]:
    def gate_up(draw: Draw) -> dict[str, Any]:
        return {"gate_up": draw.normal("T", 2 * draw.sizes["F"], scale=8.0)}

    def weighed(draw: Draw) -> dict[str, Any]:
        return {**gate_up(draw), "row_weight": draw.uniform("T")}

    yield Case("clamped", T=9, F=64, limit=10.0, out="f32", make=gate_up, required=True)
    yield Case("weighed", T=9, F=64, limit=2.0, out="f32", make=weighed, required=True)
    yield Case("not_clamped_bf16", T=3, F=64, limit=None, out="bf16", make=gate_up)
    yield Case("no_rows", T=0, F=64, limit=10.0, out="f32", make=weighed)
    yield ErrorCase(
        "row_weight",
        T=2,
        F=8,
        limit=1.0,
        out="f32",
        make=weighed,
        stretch=("row_weight", "T"),
        raises=ShapeError,
        match="T=3",
    )


@expert_mlp.cases
def _mlp_cases() -> Iterator[Case]:
    released: dict[str, Any] = {
        "limit": 10.0,
        "quantize_inner": True,
        "round_inner": False,
        "out": "bf16",
        "make": draw_experts,
    }
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, E=8, K=2, H=64, F=32, required=True, **released)
    yield Case("tight_clamp", T=5, E=4, K=3, H=64, F=32, **dict(released, limit=0.5))
    yield Case("no_clamp", T=5, E=4, K=1, H=64, F=32, **dict(released, limit=None))
    plain: dict[str, Any] = {"limit": 2.0, "quantize_inner": False, "round_inner": True, "out": "f32", "make": _plain}
    yield Case("f32", T=5, E=4, K=2, H=64, F=32, dtype="f32", **plain)
    yield ErrorCase(
        "ids", T=2, E=4, K=2, H=32, F=32, stretch=("ids", "T"), raises=ShapeError, match="ids has T=3", **released
    )


@combine.cases
def _combine_cases() -> Iterator[Case]:
    yield Case("rows", T=9, K=6, H=64, required=True)
    yield Case("no_rows", T=0, K=2, H=64, required=True)
    yield ErrorCase("hidden", T=2, K=2, H=8, stretch=("shared", "H"), raises=ShapeError, match="shared has H=9")


@expert_layer.cases
def _layer_cases() -> Iterator[Case]:
    released: dict[str, Any] = {
        "limit": 10.0,
        "quantize_inner": True,
        "round_inner": False,
        "out": "bf16",
        "make": draw_experts,
    }
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, E=8, K=2, H=64, F=32, required=True, **released)
    plain: dict[str, Any] = {"limit": 2.0, "quantize_inner": False, "round_inner": True, "out": "f32", "make": _plain}
    yield Case("f32", T=5, E=4, K=2, H=64, F=32, dtype="f32", **plain)
    yield ErrorCase(
        "weights", T=2, E=4, K=2, H=32, F=32, stretch=("weights", "K"), raises=ShapeError, match="has K=3", **released
    )
