"""``moe`` at the released sizes, for the compile test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepinfer_core.tensor import Packed
from deepinfer_cuda.ops.expert_packing import empty_weights
from deepinfer_cuda.ops.experts import run_expert_layer, run_expert_mlp
from deepinfer_cuda.ops.moe import run_combine, run_swiglu
from deepinfer_cuda.ops.routing import run_route, run_select_experts
from deepinfer_cuda.quantised import empty_quantised

_META = torch.device("meta")
_HIDDEN, _INNER, _EXPERTS, _SLOTS = 5120, 2304, 384, 6
_ARITHMETIC: dict[str, Any] = {"limit": 10.0, "quantize_inner": True, "round_inner": False, "out": "bf16"}


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _weights(format: str, experts: int, matrices: int, rows: int, width: int) -> Packed:
    return Packed(empty_weights(format, experts, matrices, rows, width, _META), (experts, matrices * rows, width))


def _step(rows: int) -> dict[str, Any]:
    return {
        "x": empty_quantised((rows, _HIDDEN), "mxfp8", _META),
        "ids": _empty(rows, _SLOTS, dtype=torch.int32),
        "weights": _empty(rows, _SLOTS, dtype=torch.float32),
        "gate_up": _weights("mxfp4", _EXPERTS, 2, _INNER, _HIDDEN),
        "down": _weights("mxfp4", _EXPERTS, 1, _HIDDEN, _INNER),
        **_ARITHMETIC,
    }


def _layer(rows: int) -> Callable[[], Any]:
    shared_gate_up = _weights("fp8_block32", 1, 2, _INNER, _HIDDEN)
    shared_down = _weights("fp8_block32", 1, 1, _HIDDEN, _INNER)
    return lambda: run_expert_layer(**_step(rows), shared_gate_up=shared_gate_up, shared_down=shared_down)


def _route(rows: int) -> Callable[[], Any]:
    router = Packed(_empty(1, _EXPERTS, _HIDDEN), (_EXPERTS, _HIDDEN))
    bias = _empty(_EXPERTS, dtype=torch.float32)
    return lambda: run_route(_empty(rows, _HIDDEN), bias, router, experts_per_token=_SLOTS, scaling=1.5)


CALLS = {
    **{f"expert_layer_{rows}": _layer(rows) for rows in (1, 256, 1024, 8192)},
    "expert_mlp_64": lambda: run_expert_mlp(**_step(64)),
    "route_1": _route(1),
    "route_8192": _route(8192),
    "select_experts": lambda: run_select_experts(
        _empty(64, _EXPERTS, dtype=torch.float32),
        _empty(_EXPERTS, dtype=torch.float32),
        experts_per_token=6,
        scaling=1.5,
    ),
    "swiglu": lambda: run_swiglu(_empty(64, 2 * _INNER), limit=10.0, out="f32"),
    "combine": lambda: run_combine(_empty(64, _SLOTS, _HIDDEN), _empty(64, _HIDDEN)),
}
"""Name -> a call of an adapter on tensors without storage."""
