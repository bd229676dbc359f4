"""Sparse attention of decode rows and what surrounds the output projection, in compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.compiled import array, empty, kernel, narrowed, over_rows, tensor, widened
from deepinfer_core.reference.compiled_codes import GridNumbers, Records, grid_numbers, read_record, round_row
from deepinfer_core.reference.compiled_products import Maps, group_maps, grouped_product, one_map
from deepinfer_core.reference.compiled_rows import dots, rotate_in_place, run_quantize, widen
from deepinfer_core.reference.compiled_vectors import PANEL, add_dense_products
from deepinfer_core.reference.limits import weight_copies
from deepinfer_core.reference.rounding import cast
from deepinfer_core.tensor import Cache, Packed

if TYPE_CHECKING:
    from torch import Tensor

_NO_SLOTS = np.empty((0, 0), np.int32)
_NO_GRID: GridNumbers = (0, 0, 0, 0, 0)
_BF16 = np.empty(0, np.int16)


@kernel
def _read_listed(slots: Any, data: Any, layout: Any, group: Any, factors: Any, keys: Any, count: Any) -> Any:
    """Decode the rows of all slots that are not negative behind the ``count`` keys that are there; how many then."""
    for place in range(len(slots)):
        if slots[place] >= 0:
            read_record(data, slots[place], layout, group, factors, keys[count])
            count += 1
    return count


@kernel
def _attend(
    query: Any, keys: Any, count: Any, sink: Any, is_rounded: Any, weights: Any, totals: Any, sums: Any, result: Any
) -> None:
    """Softmax attention of scaled heads ``[N, D]`` over the first keys; spec attention/01 section 7."""
    heads = len(query)
    for place in range(count):
        dots(query, keys[place], totals)
        for head in range(heads):
            weights[head, place] = totals[head]
    for head in range(heads):
        largest = np.float32(-np.inf)
        for place in range(count):
            largest = max(largest, weights[head, place])
        largest = largest if np.isfinite(largest) else np.float32(0.0)
        total = np.exp(sink[head] - largest)
        for place in range(count):
            weight = np.exp(weights[head, place] - largest)
            total += weight
            weights[head, place] = widened(narrowed(weight, _BF16)) if is_rounded else weight
        totals[head] = total
    for head in range(0, heads, 2):
        _weigh(keys, count, weights, head, min(head + 1, heads - 1), totals, sums, result)


@kernel
def _weigh(keys: Any, count: Any, weights: Any, head: Any, other: Any, totals: Any, sums: Any, result: Any) -> None:
    """Sums of the first keys by the weights of two heads, over their totals."""
    width, most = keys.shape[1], weights.shape[1]
    values, shares = keys.reshape(-1), weights.reshape(-1)
    for start in range(0, width - PANEL + 1, PANEL):
        sums[:] = np.float32(0.0)
        add_dense_products(sums, shares, head * most, other * most, values, start, width, count)
        for column in range(PANEL):
            result[head, start + column] = narrowed(sums[column] / totals[head], result)
            result[other, start + column] = narrowed(sums[PANEL + column] / totals[other], result)
    for column in range(width - width % PANEL, width):
        for own in range(head, other + 1):
            total = np.float32(0.0)
            for place in range(count):
                total += weights[own, place] * keys[place, column]
            result[own, column] = narrowed(total / totals[own], result)


@kernel
def _scale_query(query: Any, scale: Any, result: Any) -> None:
    for head in range(query.shape[0]):
        for column in range(query.shape[1]):
            result[head, column] = widened(query[head, column]) * scale


@kernel
def _decode_rows(
    query: Any,
    sink: Any,
    scale: Any,
    is_rounded: Any,
    window_slots: Any,
    window: Any,
    window_layout: Any,
    window_group: Any,
    window_factors: Any,
    context_slots: Any,
    context: Any,
    context_layout: Any,
    context_group: Any,
    context_factors: Any,
    result: Any,
    first: Any,
    last: Any,
) -> None:
    heads, width = query.shape[1], query.shape[2]
    keys = np.empty((window_slots.shape[1] + context_slots.shape[1], width), np.float32)
    weights = np.empty((heads, len(keys)), np.float32)
    scaled, totals = np.empty((heads, width), np.float32), np.empty(heads, np.float32)
    sums = np.empty(2 * PANEL, np.float32)
    for index in range(first, last):
        count = _read_listed(window_slots[index], window, window_layout, window_group, window_factors, keys, 0)
        if len(context_slots):
            slots = context_slots[index]
            count = _read_listed(slots, context, context_layout, context_group, context_factors, keys, count)
        _scale_query(query[index], scale, scaled)
        _attend(scaled, keys, count, sink, is_rounded, weights, totals, sums, result[index])


@kernel
def _gather_listed(indices: Any, rows: Any, keys: Any, count: Any) -> Any:
    """Rows of all indices that are not negative behind the ``count`` keys that are there; how many then."""
    for place in range(len(indices)):
        if indices[place] >= 0:
            widen(rows[indices[place]], keys[count])
            count += 1
    return count


@kernel
def _prefill_rows(
    query: Any,
    sink: Any,
    scale: Any,
    is_rounded: Any,
    near: Any,
    near_indices: Any,
    far: Any,
    far_indices: Any,
    result: Any,
    first: Any,
    last: Any,
) -> None:
    heads, width = query.shape[1], query.shape[2]
    keys = np.empty((near_indices.shape[1] + far_indices.shape[1], width), np.float32)
    weights = np.empty((heads, len(keys)), np.float32)
    scaled, totals = np.empty((heads, width), np.float32), np.empty(heads, np.float32)
    sums = np.empty(2 * PANEL, np.float32)
    for index in range(first, last):
        count = _gather_listed(near_indices[index], near, keys, 0)
        if len(far_indices):
            count = _gather_listed(far_indices[index], far, keys, count)
        _scale_query(query[index], scale, scaled)
        _attend(scaled, keys, count, sink, is_rounded, weights, totals, sums, result[index])


def run_sparse_prefill(
    query: Tensor,
    window_rows: Tensor,
    window_indices: Tensor,
    sink: Tensor,
    context_rows: Tensor | None = None,
    context_indices: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_prefill``: each query gathers its rows."""
    del plan
    rows, near, listed = array(query), array(window_rows), array(window_indices)
    far, chosen = near, _NO_SLOTS
    if context_rows is not None and context_indices is not None:
        far, chosen = array(context_rows), array(context_indices)
    result = empty(rows.shape, TORCH_DTYPES[out])
    work = 2 * rows.shape[1] * rows.shape[2] * (listed.shape[1] + chosen.shape[1])
    inputs = (rows, array(sink), np.float32(scale), round_probabilities, near, listed, far, chosen)
    over_rows(_prefill_rows, len(rows), work, *inputs, result)
    return tensor(result)


def run_sparse_decode(
    query: Tensor,
    window: Cache,
    window_slots: Tensor,
    sink: Tensor,
    context: Cache | None = None,
    context_slots: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_decode``: every cached row is read once and serves as key and as value."""
    del plan
    rows, near = array(query), Records.of(window)
    far = near if context is None else Records.of(context)
    slots = _NO_SLOTS if context_slots is None else array(context_slots)
    result = empty(rows.shape, TORCH_DTYPES[out])
    listed = array(window_slots)
    over_rows(
        _decode_rows,
        len(rows),
        2 * rows.shape[1] * rows.shape[2] * (listed.shape[1] + slots.shape[1]),
        rows,
        array(sink),
        np.float32(scale),
        round_probabilities,
        listed,
        near.bytes,
        near.layout,
        near.group,
        near.factors,
        slots,
        far.bytes,
        far.layout,
        far.group,
        far.factors,
        result,
    )
    return tensor(result)


@kernel
def _turn_back_rows(attended: Any, positions: Any, table: Any, grid: Any, result: Any, first: Any, last: Any) -> None:
    heads, width = attended.shape[1], attended.shape[2]
    row = np.empty(width, np.float32)
    for index in range(first, last):
        for head in range(heads):
            widen(attended[index, head], row)
            rotate_in_place(row, table[positions[index]], np.float32(-1.0))
            for column in range(width):
                row[column] = widened(narrowed(row[column], attended))
            target = result[index, head * width : (head + 1) * width]
            if grid[0]:
                round_row(row, grid, target)
            else:
                target[:] = row


def turned_back(attended: Tensor, positions: Tensor, table: Tensor, grid: GridNumbers) -> Tensor:
    """Heads ``[T, N, D]`` rotated back and rounded to a grid (zeros for none): float32 ``[T, N D]``."""
    rows = array(attended)
    count, heads, width = rows.shape
    result = empty((count, heads * width))
    over_rows(_turn_back_rows, count, 4 * heads * width, rows, array(positions), array(table), grid, result)
    return tensor(result)


def pack_output_maps(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """The map of every group of heads, and the second map."""
    first, second, copies = weights["output_a"], weights["output_b"], weight_copies(site)
    return {
        "output_a": Packed(Maps.of(group_maps(first, site.attributes["groups"]), copies), tuple(first.shape)),
        "output_b": Packed(Maps.of([second], copies), tuple(second.shape)),
    }


def run_project_output(
    attended: Tensor,
    positions: Tensor,
    table: Tensor,
    output_a: Packed,
    output_b: Packed,
    *,
    groups: int,
    quantize_input: bool,
    out: str,
) -> Tensor:
    """``attention.project_output`` with weights from :func:`pack_output_maps`."""
    rows = turned_back(attended, positions, table, grid_numbers("mxfp8") if quantize_input else _NO_GRID)
    inner = cast(grouped_product(rows, output_a.payload, groups), TORCH_DTYPES[out])
    wide = run_quantize(inner, format="mxfp8").data if quantize_input else inner.float()
    return cast(output_b.payload(wide, one_map(wide.shape[0])), TORCH_DTYPES[out])
