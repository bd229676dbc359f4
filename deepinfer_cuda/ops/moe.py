"""``moe``: routing, experts and their sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Limit, Site, attribute_in, dtype_in, multiple_of
from deepinfer_core.ops.moe.experts import combine, expert_layer, expert_mlp, swiglu
from deepinfer_core.ops.moe.select_experts import route, select_experts
from deepinfer_cuda.expert_room import experts_workspace
from deepinfer_cuda.kernels.swiglu import swiglu_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.expert_packing import pack_experts
from deepinfer_cuda.ops.experts import combine as sum_experts
from deepinfer_cuda.ops.experts import run_expert_layer, run_expert_mlp
from deepinfer_cuda.ops.routing import pack_router, route_workspace, run_route, run_select_experts
from deepinfer_cuda.row_tiles import power_of_two

_SWIGLU_COLUMNS = 1024


def run_swiglu(gate_up: Tensor, row_weight: Tensor | None = None, *, limit: float | None, out: str) -> Tensor:
    """``moe.swiglu``."""
    rows, stride = rows_of(gate_up)
    width = rows.shape[1] // 2
    result = torch.empty((len(rows), width), dtype=TORCH_DTYPES[out], device=rows.device)
    block = min(power_of_two(width), _SWIGLU_COLUMNS)
    launch(
        swiglu_kernel,
        (len(rows), -(-width // block)),
        *(rows, row_weight, result, limit or 0.0, stride, 0 if row_weight is None else row_weight.stride(0)),
        WIDTH=width,
        BLOCK=block,
        HAS_LIMIT=limit is not None,
        HAS_WEIGHT=row_weight is not None,
    )
    return result


def run_combine(routed: Tensor, shared: Tensor) -> Tensor:
    """``moe.combine``."""
    result = torch.empty(shared.shape, dtype=shared.dtype, device=shared.device)
    sum_experts(rows_of(routed)[0], rows_of(shared)[0], None, result)
    return result


def _has_rounded_inner(site: Site) -> bool:
    return bool(site.attributes.get("quantize_inner", True) or site.attributes.get("round_inner", True))


_EXPERT_LIMITS = (
    dtype_in("bf16"),
    attribute_in("out", "bf16"),
    Limit("the inner row must be quantised or rounded", _has_rounded_inner),
    multiple_of("F", 32),
)
_EXPERTS: dict[str, Any] = {
    "row_invariant": True,
    "note": "FP4 and FP8 weights become bf16 in registers, products are bf16",
    "workspace": experts_workspace,
}

IMPLEMENTATIONS = {
    swiglu: (
        Implementation(run_swiglu, (dtype_in("bf16", "f32"), attribute_in("out", "bf16", "f32")), row_invariant=True),
    ),
    combine: (Implementation(run_combine, (dtype_in("bf16", "f32"),), row_invariant=True),),
    select_experts: (Implementation(run_select_experts, (dtype_in("bf16", "f32"),), row_invariant=True),),
    route: (
        Implementation(
            run_route,
            (dtype_in("bf16"), attribute_in("logits_dtype", "f32")),
            pack_router,
            row_invariant=True,
            workspace=route_workspace,
        ),
    ),
    expert_mlp: (Implementation(run_expert_mlp, _EXPERT_LIMITS, pack_experts, **_EXPERTS),),
    expert_layer: (Implementation(run_expert_layer, _EXPERT_LIMITS, pack_experts, **_EXPERTS),),
}
