"""``moe.route`` and ``moe.select_experts``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.ops.limits import Site
from deepinfer_core.tensor import Packed
from deepinfer_cuda.kernels.router_logits import router_logits_kernel
from deepinfer_cuda.kernels.select_experts import select_experts_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.row_tiles import power_of_two

_STEP = 128
_PARTS = 8
"""Parts of the sum over channels; the same for any number of rows, so that a row's bits do not depend on it."""
_SPLIT_ROWS = 1024
"""Up to so many rows each part has programs of its own: there are too few tiles to fill the GPU otherwise."""
_SELECTED_ELEMENTS = 2048
"""Scores that one program holds."""


def pack_router(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """The router as bfloat16 pieces ``[pieces, E, H]`` with the exact sum: one of bfloat16, three of float32."""
    router: Tensor = weights["router"]
    pieces = [router.to(torch.bfloat16)]
    if router.dtype == torch.float32:
        rest = router - pieces[0].float()
        pieces.append(rest.to(torch.bfloat16))
        pieces.append((rest - pieces[1].float()).to(torch.bfloat16))
    return {"router": Packed(torch.stack(pieces), tuple(router.shape))}


def run_route(
    x: Tensor, bias: Tensor, router: Packed, *, experts_per_token: int, scaling: float, logits_dtype: str = "f32"
) -> tuple[Tensor, Tensor]:
    """``moe.route``: logits, in parts where rows are few, and the selection."""
    pieces: Tensor = router.payload
    num_pieces, num_experts, hidden = pieces.shape
    rows, stride = rows_of(x)
    num_rows, steps = len(rows), -(-hidden // _STEP)
    steps_per_part = -(-steps // _PARTS)
    num_parts = -(-steps // steps_per_part)
    groups = num_parts if num_rows <= _SPLIT_ROWS else 1
    logits = torch.empty((groups, num_rows, num_experts), dtype=torch.float32, device=x.device)
    block_m = min(max(power_of_two(num_rows), 16), 64)
    launch(
        router_logits_kernel,
        (-(-num_rows // block_m), -(-num_experts // 64), groups),
        *(rows, pieces, logits, num_rows, stride, logits.stride(0)),
        EXPERTS=num_experts,
        HIDDEN=hidden,
        PIECES=num_pieces,
        PARTS=num_parts // groups,
        STEPS=steps_per_part,
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_K=_STEP,
        num_stages=4 if groups > 1 else 3,
    )
    return _select(logits, bias, experts_per_token, scaling)


def route_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``moe.route``: logits in float32, of few rows one for each part."""
    return 4 * site.sizes["E"] * max(request.rows, _PARTS * min(request.rows, _SPLIT_ROWS))


def run_select_experts(
    logits: Tensor, bias: Tensor, *, experts_per_token: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """``moe.select_experts``."""
    return _select(rows_of(logits)[0].unsqueeze(0), bias, experts_per_token, scaling)


def _select(logits: Tensor, bias: Tensor, chosen: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Select from the sum of logits ``[parts, T, E]``."""
    num_parts, num_rows, num_experts = logits.shape
    ids = torch.empty((num_rows, chosen), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_rows, chosen), dtype=torch.float32, device=logits.device)
    block = power_of_two(num_experts)
    rows = max(_SELECTED_ELEMENTS // block, 1) if num_rows > 128 else 1
    launch(
        select_experts_kernel,
        (-(-num_rows // rows),),
        *(logits, bias, ids, weights, num_rows, logits.stride(0), logits.stride(1), scaling),
        EXPERTS=num_experts,
        CHOSEN=chosen,
        PARTS=num_parts,
        ROWS=rows,
        BLOCK=block,
        CHOSEN_BLOCK=power_of_two(chosen),
    )
    return ids, weights
