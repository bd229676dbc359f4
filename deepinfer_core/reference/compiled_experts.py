"""Experts in compiled code: every step between products is one pass over the pairs of row and expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.compiled import array, empty, kernel, narrowed, over_rows, tensor, widened
from deepinfer_core.reference.compiled_codes import GridNumbers, grid_numbers, round_row
from deepinfer_core.reference.compiled_products import Maps, Order, one_map
from deepinfer_core.reference.limits import weight_copies
from deepinfer_core.reference.products import rows_of
from deepinfer_core.tensor import Packed, QuantTensor

_NO_GRID: GridNumbers = (0, 0, 0, 0, 0)


@kernel
def _sort_pairs(ids: Any, num_maps: Any, is_shared: Any, pairs: Any, sources: Any, positions: Any, stops: Any) -> Any:
    """Pairs of row and slot by expert, rows ascending; the shared expert is the last map, its slot the first.

    Fills the pair and the row of each position, the position of each pair (-1 for a slot without expert), and where
    the positions of each map end.
    """
    num_rows, slots = ids.shape
    extra = 1 if is_shared else 0
    stops[:] = 0
    for row in range(num_rows):
        for slot in range(slots):
            if ids[row, slot] >= 0:
                stops[ids[row, slot] + 1] += 1
    if is_shared:
        stops[num_maps] += num_rows
    for number in range(num_maps):
        stops[number + 1] += stops[number]
    free = stops[:num_maps].copy()
    for row in range(num_rows):
        for slot in range(slots + extra):
            pair = row * (slots + extra) + slot
            number = num_maps - 1 if is_shared and slot == 0 else ids[row, slot - extra]
            positions[pair] = -1
            if number >= 0:
                position = free[number]
                pairs[position], sources[position], positions[pair] = pair, row, position
                free[number] += 1
    return stops[num_maps]


@kernel
def _inner_rows(
    gate_up: Any,
    pairs: Any,
    weights: Any,
    is_shared: Any,
    limit: Any,
    is_rounded: Any,
    grid: Any,
    like: Any,
    inner: Any,
    first: Any,
    last: Any,
) -> None:
    """What the second map of an expert reads: SwiGLU of rounded rows, weighed, clamped and rounded as asked."""
    width, slots = inner.shape[1], weights.shape[1]
    extra = 1 if is_shared else 0
    row = np.empty(width, np.float32)
    for index in range(first, last):
        slot = pairs[index] % (slots + extra)
        share = np.float32(1.0)
        if not is_shared or slot:
            share = weights[pairs[index] // (slots + extra), slot - extra]
        gates, ups = gate_up[index, :width], gate_up[index, width:]
        for column in range(width):
            gate = widened(narrowed(gates[column], like))
            up = widened(narrowed(ups[column], like))
            gate, up = min(gate, limit), max(min(up, limit), -limit)
            value = gate / (np.float32(1.0) + np.exp(-gate)) * up * share
            row[column] = widened(narrowed(value, like)) if is_rounded else value
        if grid[0]:
            round_row(row, grid, inner[index])
        else:
            inner[index] = row


@kernel
def _sum_slots(outputs: Any, positions: Any, slots: Any, result: Any, first: Any, last: Any) -> None:
    """Rounded outputs of a row's experts, added in the order of slots."""
    width = result.shape[1]
    total = np.empty(width, np.float32)
    for index in range(first, last):
        total[:] = np.float32(0.0)
        for slot in range(slots):
            position = positions[index * slots + slot]
            if position >= 0:
                own = outputs[position]
                for column in range(width):
                    total[column] += widened(narrowed(own[column], result))
        for column in range(width):
            result[index, column] = narrowed(total[column], result)


def pack_expert_maps(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Both maps of every expert, stacked; a shared expert is the last one and has the names without ``shared``."""
    copies, packed = weight_copies(site), dict[str, Any]()
    for name in ("gate_up", "down"):
        every = weights[name]
        parts = [every[number] for number in range(every.shape[0])] if len(every.shape) == 3 else [every]
        shared = weights.get(f"shared_{name}")
        if shared is not None:
            parts.append(shared)
            packed[f"shared_{name}"] = Packed(None, tuple(shared.shape))
        packed[name] = Packed(Maps.of(parts, copies), tuple(every.shape))
    return packed


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
    """``moe.expert_mlp`` with weights from :func:`pack_expert_maps`."""
    maps, settings = (gate_up.payload, down.payload), (limit, quantize_inner, round_inner, out)
    return _mixture(x, ids, weights, maps, settings, is_summed=False)


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
    """``moe.expert_layer`` with weights from :func:`pack_expert_maps`."""
    del shared_gate_up, shared_down
    maps, settings = (gate_up.payload, down.payload), (limit, quantize_inner, round_inner, out)
    return _mixture(x, ids, weights, maps, settings, is_summed=True)


def _mixture(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    maps: tuple[Maps, Maps],
    settings: tuple[float | None, bool, bool, str],
    *,
    is_summed: bool,
) -> Tensor:
    """Outputs of each row's experts ``[T, K, H]``, or ``[T, H]``: their sum and that of the shared expert."""
    limit, quantize_inner, round_inner, out = settings
    chosen, rows = array(ids), rows_of(x, torch.float32)
    num_rows, slots = chosen.shape[0], chosen.shape[1] + is_summed
    num_maps, most = maps[0].count, num_rows * slots
    pairs, sources, positions = np.empty((3, most), np.int32)
    stops = np.empty(num_maps + 1, np.int32)
    count = _sort_pairs(chosen, num_maps, is_summed, pairs, sources, positions, stops)
    gate_up = array(maps[0](rows, Order(sources[:count], stops)))
    inner = empty((count, gate_up.shape[1] // 2))
    clamp = np.float32(np.inf if limit is None else limit)
    grid = grid_numbers("mxfp8") if quantize_inner else _NO_GRID
    like = empty((0, 0), TORCH_DTYPES[out])
    arguments = (gate_up, pairs, array(weights), is_summed, clamp, round_inner, grid, like, inner)
    over_rows(_inner_rows, count, 16 * inner.shape[1], *arguments)
    outputs = array(maps[1](tensor(inner), Order(one_map(count).sources, stops)))
    num_results, addends = (num_rows, slots) if is_summed else (most, 1)
    result = empty((num_results, outputs.shape[1]), TORCH_DTYPES[out])
    over_rows(_sum_slots, num_results, addends * outputs.shape[1], outputs, positions, addends, result)
    return tensor(result if is_summed else result.reshape(num_rows, slots, result.shape[1]))
