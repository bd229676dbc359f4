"""Experts on the CPU: rows are sorted by expert, each expert that is hit multiplies its rows once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.chunks import row_chunks
from deepinfer_core.reference.products import pack_dense, product, rows_of
from deepinfer_core.reference.rounding import GRIDS, cast, round_rows, through
from deepinfer_core.tensor import Packed, QuantTensor


def pack_experts(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Dense copies of every map as ``[in, out]`` views: one per expert, or a single one without an expert axis."""
    copies = pack_dense(weights, site)
    return {name: Packed(_maps(copy), tuple(copy.shape)) for name, copy in copies.items()}


def _maps(copy: Tensor) -> tuple[Tensor, ...]:
    return tuple(copy.unbind(0)) if copy.dim() == 3 else (copy,)


def run_swiglu(gate_up: Tensor, row_weight: Tensor | None = None, *, limit: float | None, out: str) -> Tensor:
    """``moe.swiglu``."""
    return cast(_swiglu(gate_up.float().clone(), row_weight, limit), TORCH_DTYPES[out])


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
) -> Tensor:
    """``moe.expert_mlp`` with packed weights."""
    mlp = _ExpertMLP(gate_up.payload, down.payload, limit, quantize_inner, round_inner, TORCH_DTYPES[out])
    return cast(mlp(x, ids, weights), TORCH_DTYPES[out])


def run_expert_layer(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Packed,
    down: Packed,
    shared_gate_up: Packed,
    shared_down: Packed,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """``moe.expert_layer`` with packed weights: the shared expert is one more expert that every row goes to first."""
    maps = (*gate_up.payload, *shared_gate_up.payload), (*down.payload, *shared_down.payload)
    mlp = _ExpertMLP(*maps, limit, quantize_inner, round_inner, TORCH_DTYPES[out])
    ids = torch.nn.functional.pad(ids, (1, 0), value=len(gate_up.payload))
    weights = torch.nn.functional.pad(weights, (1, 0), value=1.0)
    return cast(mlp(x, ids, weights).sum(1), TORCH_DTYPES[out])


@dataclass(frozen=True, slots=True)
class _ExpertMLP:
    """Maps of every expert and the attributes of the op; see ``moe.expert_mlp``."""

    gate_up: Sequence[Tensor]
    down: Sequence[Tensor]
    limit: float | None
    quantize_inner: bool
    round_inner: bool
    dtype: torch.dtype

    def __call__(self, x: Tensor | QuantTensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Float32 results ``[T, K, H]``, rounded to the result's type; pairs of row and slot in expert order."""
        rows, flat, slots = rows_of(x, self.gate_up[0].dtype), ids.flatten(), ids.shape[1]
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat + 1, minlength=len(self.gate_up) + 1).tolist()
        result = torch.zeros(len(flat), x.shape[-1])
        pair_weights = weights.flatten()
        stops = list(accumulate(counts))
        for chunk in row_chunks(len(flat) - counts[0], 3 * self.gate_up[0].shape[1]):
            first, last = chunk.start + counts[0], min(chunk.stop + counts[0], len(flat))
            pairs, runs = order[first:last], list(_runs(stops, first, last))
            inner = _per_run(rows.index_select(0, pairs // slots), self.gate_up, runs)
            inner = self._inner(inner.float(), pair_weights.index_select(0, pairs))
            outputs = _per_run(cast(inner, self.down[0].dtype), self.down, runs)
            result.index_copy_(0, pairs, through(outputs.float(), self.dtype))
        return result.unflatten(0, tuple(ids.shape))

    def _inner(self, gate_up: Tensor, row_weight: Tensor) -> Tensor:
        """What the second map of an expert reads, in float32."""
        inner = _swiglu(through(gate_up, self.dtype), row_weight, self.limit)
        if self.round_inner:
            inner = through(inner, self.dtype)
        return round_rows(inner, GRIDS["mxfp8"]) if self.quantize_inner else inner


def _swiglu(gate_up: Tensor, row_weight: Tensor | None, limit: float | None) -> Tensor:
    """``silu(gate) * up * row_weight`` of float32 rows; their clamped values overwrite them."""
    gate, up = gate_up.chunk(2, -1)
    if limit is not None:
        gate.clamp_(max=limit)
        up.clamp_(-limit, limit)
    result = silu(gate).mul_(up)
    return result if row_weight is None else result.mul_(row_weight.unsqueeze(-1))


def _runs(stops: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Expert, begin and end (from ``first``) of the experts among the sorted pairs ``first .. last - 1``.

    Args:
        stops: Where the pairs of no expert end, then those of each expert.
        first: First pair.
        last: One past the last pair.
    """
    for expert, (start, stop) in enumerate(pairwise(stops)):
        begin, end = max(start, first), min(stop, last)
        if begin < end:
            yield expert, begin - first, end - first


def _per_run(rows: Tensor, maps: Sequence[Tensor], runs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Each run of rows times the map of its expert."""
    result = rows.new_empty(len(rows), maps[0].shape[1])
    for expert, begin, end in runs:
        result[begin:end] = product(rows[begin:end], maps[expert])
    return result
