"""Routed experts on the CPU: rows are sorted by expert, each expert that is hit multiplies its rows once."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.moe.experts import swiglu
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.ops.wide import wide_name
from deepinfer_core.reference.linear import rows_of
from deepinfer_core.tensor import QuantTensor


def run_expert_mlp(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """``moe.expert_mlp`` with packed weights; pairs of row and slot are processed in expert order."""
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat.clamp_min(-1) + 1, minlength=gate_up.shape[0] + 1).tolist()
    order = order[counts[0] :]
    rows = rows_of(x, gate_up.dtype)[torch.div(order, ids.shape[1], rounding_mode="floor")]
    inner = _per_expert(rows, gate_up, counts[1:]).to(TORCH_DTYPES[out])
    inner = swiglu.reference(inner, weights.flatten()[order], limit=limit, out=out if round_inner else wide_name(out))
    if quantize_inner:
        inner = dequantize_values(quantize_rows(inner, FORMATS["mxfp8"]), down.dtype)
    result = torch.zeros(flat.shape[0], x.shape[-1], dtype=TORCH_DTYPES[out])
    result[order] = _per_expert(inner.to(down.dtype), down, counts[1:]).to(result.dtype)
    return result.unflatten(0, tuple(ids.shape))


def _per_expert(rows: Tensor, maps: Tensor, counts: list[int]) -> Tensor:
    """Rows sorted by expert, each group times its expert's map."""
    pieces = [piece @ maps[expert].T for expert, piece in enumerate(rows.split(counts)) if len(piece)]
    return torch.cat(pieces) if pieces else rows.new_zeros(0, maps.shape[1])
