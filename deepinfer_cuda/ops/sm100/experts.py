"""``moe`` over DeepGEMM: the experts' products of MXFP8 rows and FP4 weights.

Rows are laid out for the grouped products with a few torch calls, and SwiGLU and requantisation run in the Triton
kernels between them; no number of a product is read by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.declare import Op, Use
from deepinfer_core.ops.limits import Site, attribute_in, multiple_of
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import expert_layer, expert_mlp, swiglu
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.sm100.expert_rows import Placement, place_rows
from deepinfer_cuda.ops.sm100.layouts import SCALED_CHANNELS, pack_scales
from deepinfer_cuda.ops.sm100.libraries import DEEP_GEMM_LIMITS, NOTE, Library, deep_gemm, triton_part
from deepinfer_cuda.ops.sm100.linear import pack_linear, run_linear

_MOST_ROWS = 4096
"""Rows of a step that go through the experts at once: operands of a product take about a GiB at the released sizes."""
_RECIPES: dict[str, Any] = {"recipe_a": (1, 32), "recipe_b": (1, 32)}
"""A scale for one row and 32 channels, of both operands."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fp4Weight:
    """One map of every expert for DeepGEMM.

    Attributes:
        data: ``[experts, rows, width / 2]`` int8, even channel in the low nibble.
        scales: ``[experts, rows, width / 128]`` int32, packed.
    """

    data: Tensor
    scales: Tensor


def pack_experts(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Weights of ``moe.expert_mlp`` and ``moe.expert_layer``.

    Raises:
        UnsupportedByBackend: An expert weight is not FP4, or a width is not a multiple of 128.
    """
    shared = {name: weight for name, weight in weights.items() if name.startswith("shared")}
    routed = {name: _pack(name, weight) for name, weight in weights.items() if name not in shared}
    return {**routed, **pack_linear(shared, site)}


def _pack(name: str, weight: Tensor | QuantTensor) -> Packed:
    if not isinstance(weight, QuantTensor) or weight.format != "mxfp4":
        found = weight.format if isinstance(weight, QuantTensor) else str(weight.dtype)
        raise UnsupportedByBackend("cuda", (f"deep_gemm: {name} is {found}, but experts must be mxfp4",))
    if weight.shape[2] % SCALED_CHANNELS:
        problem = f"deep_gemm: {name} is {weight.shape[2]} channels wide, but needs a multiple of {SCALED_CHANNELS}"
        raise UnsupportedByBackend("cuda", (problem,))
    payload = Fp4Weight(data=weight.data.contiguous().view(torch.int8), scales=pack_scales(weight.scale))
    return Packed(payload, tuple(weight.shape))


def run_expert_mlp(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Packed,
    down: Packed,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
    library: Library = deep_gemm,
    use: Use = triton_part,
) -> Tensor:
    """``moe.expert_mlp``.

    Args:
        x: Rows in MXFP8.
        ids: Experts of each row.
        weights: Routing weights.
        gate_up: From :func:`pack_experts`.
        down: From :func:`pack_experts`.
        limit: See the op.
        quantize_inner: True, by a limit.
        round_inner: See the op.
        out: ``bf16``, by a limit.
        library: Gives DeepGEMM.
        use: Gives the steps that DeepGEMM does not cover.

    Raises:
        UnsupportedByBackend: The rows are not quantised although the inner row is to be.
    """
    if not isinstance(x, QuantTensor):
        problem = "deep_gemm: experts take MXFP8 rows; with quantize_inner the rows must be quantised too"
        raise UnsupportedByBackend("cuda", (problem,))
    activate = partial(use(swiglu), limit=limit, out=out if round_inner else "f32")
    result = torch.empty((*ids.shape, down.shape[1]), dtype=torch.bfloat16, device=ids.device)
    for begin in range(0, len(ids), _MOST_ROWS):
        part = slice(begin, begin + _MOST_ROWS)
        step = _products(library(), ids[part], num_experts=gate_up.shape[0])
        wide = step.product(_rows_of_pairs(x[part], ids.shape[1]), gate_up.payload)
        inner = use(quantize)(activate(wide, weights[part].flatten()), format="mxfp8")
        rows = step.product(inner, down.payload).unflatten(0, ids[part].shape)
        result[part] = torch.where((ids[part] < 0).unsqueeze(-1), torch.zeros_like(rows), rows)
    return result


def run_expert_layer(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Packed,
    down: Packed,
    shared_gate_up: Tensor | Packed,
    shared_down: Tensor | Packed,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
    library: Library = deep_gemm,
    use: Use = triton_part,
) -> Tensor:
    """``moe.expert_layer`` by its own steps; arguments as in :func:`run_expert_mlp`.

    The composite is listed because the Triton kernels offer it whole, which the binder would prefer to these products.
    """
    own: dict[Op[..., Any], Callable[..., Any]] = {
        expert_mlp: partial(run_expert_mlp, library=library, use=use),
        linear: partial(run_linear, library=library, use=use),
    }
    return expert_layer.body(
        lambda op: own[op] if op in own else use(op),
        *(x, ids, weights, gate_up, down, shared_gate_up, shared_down),
        limit=limit,
        quantize_inner=quantize_inner,
        round_inner=round_inner,
        out=out,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StepProducts:
    """Grouped products of the rows of one step."""

    library: Any
    placement: Placement

    def product(self, rows: QuantTensor, weight: Fp4Weight) -> Tensor:
        """Each pair's row ``[T * K, width]`` times the map of its expert: ``[T * K, n]`` bf16."""
        data = self.placement.spread(rows.data.view(torch.uint8)).view(torch.float8_e4m3fn)
        scale = self.placement.spread(rows.scale)
        result = torch.empty((len(data), weight.data.shape[1]), dtype=torch.bfloat16, device=data.device)
        multiply = self._masked if self.placement.capacity else self._contiguous
        multiply(data, scale, weight, result)
        return self.placement.collect(result)

    def _masked(self, data: Tensor, scale: Tensor, weight: Fp4Weight, result: Tensor) -> None:
        by_expert = (-1, self.placement.capacity)
        self.library.m_grouped_fp8_fp4_gemm_nt_masked(
            (data.unflatten(0, by_expert), pack_scales(scale.unflatten(0, by_expert))),
            (weight.data, weight.scales),
            result.unflatten(0, by_expert),
            self.placement.layout,
            self.placement.expected_rows,
            **_RECIPES,
        )

    def _contiguous(self, data: Tensor, scale: Tensor, weight: Fp4Weight, result: Tensor) -> None:
        self.library.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (data, pack_scales(scale)),
            (weight.data, weight.scales),
            result,
            self.placement.layout,
            use_psum_layout=True,
            expected_m_for_psum_layout=self.placement.expected_rows,
            **_RECIPES,
        )


def _products(library: Any, ids: Tensor, num_experts: int) -> _StepProducts:
    alignment = library.get_mk_alignment_for_contiguous_layout()
    return _StepProducts(library=library, placement=place_rows(ids, num_experts, alignment))


def _rows_of_pairs(x: QuantTensor, num_slots: int) -> QuantTensor:
    """Every row once for each of its slots."""
    data, scale = (t.unsqueeze(1).expand(-1, num_slots, -1).flatten(0, 1) for t in (x.data.view(torch.uint8), x.scale))
    return QuantTensor(data.view(torch.float8_e4m3fn), scale, x.format)


_LIMITS = (
    *DEEP_GEMM_LIMITS,
    attribute_in("out", "bf16"),
    attribute_in("quantize_inner", True),
    multiple_of("H", SCALED_CHANNELS),
    multiple_of("F", SCALED_CHANNELS),
)

IMPLEMENTATIONS = {
    expert_mlp: (Implementation(run_expert_mlp, _LIMITS, pack_experts, note=NOTE),),
    expert_layer: (Implementation(run_expert_layer, _LIMITS, pack_experts, note=NOTE),),
}
