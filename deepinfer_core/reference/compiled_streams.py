"""Residual streams around a sub-layer, in compiled code (spec model/04)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.reference.compiled import array, empty, kernel, narrowed, over_rows, tensor, widened
from deepinfer_core.reference.compiled_rows import dot, dots, inverse_rms, norm_in_place, widen

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST_AGREEMENT = 1e-6


@kernel
def _sinkhorn(entries: Any, eps: Any, iterations: Any) -> None:
    """Alternate column and row normalisation in place, columns first and last."""
    count = entries.shape[0]
    for step in range(2 * iterations - 1):
        for line in range(count):
            total = np.float32(0.0)
            if step % 2:
                for place in range(count):
                    total += entries[line, place]
                factor = np.float32(1.0) / (total + eps)
                for place in range(count):
                    entries[line, place] *= factor
            else:
                for place in range(count):
                    total += entries[place, line]
                factor = np.float32(1.0) / (total + eps)
                for place in range(count):
                    entries[place, line] *= factor


@kernel
def _sigmoid(value: Any) -> Any:
    return np.float32(1.0) / (np.float32(1.0) + np.exp(-value))


@kernel
def _row_softmax(logits: Any, eps: Any) -> None:
    """Softmax of every row of a square table in place, plus ``eps``."""
    count = logits.shape[0]
    for line in range(count):
        largest = logits[line, 0]
        for place in range(1, count):
            largest = max(largest, logits[line, place])
        total = np.float32(0.0)
        for place in range(count):
            logits[line, place] = np.exp(logits[line, place] - largest)
            total += logits[line, place]
        for place in range(count):
            logits[line, place] = logits[line, place] / total + eps


@kernel
def _mix_row(
    wide: Any,
    function: Any,
    base: Any,
    scale: Any,
    norm_eps: Any,
    eps: Any,
    iterations: Any,
    pre: Any,
    post: Any,
    table: Any,
) -> None:
    """Mixing numbers of one row of all streams."""
    count, sums = len(pre), np.empty(len(function), np.float32)
    inverse = inverse_rms(wide, norm_eps)
    dots(function, wide, sums)
    for place in range(count):
        pre[place] = _sigmoid(sums[place] * inverse * scale[0] + base[place]) + eps
        line = count + place
        post[place] = np.float32(2.0) * _sigmoid(sums[line] * inverse * scale[1] + base[line])
        for other in range(count):
            line = (2 + place) * count + other
            table[place, other] = sums[line] * inverse * scale[2] + base[line]
    _row_softmax(table, eps)
    _sinkhorn(table, eps, iterations)


@kernel
def _collapse_row(wide: Any, mix: Any, like: Any, row: Any) -> None:
    """All streams of one row weighed and summed, rounded to the element type of ``like``."""
    hidden = len(row)
    for column in range(hidden):
        row[column] = mix[0] * wide[column]
    for stream in range(1, len(mix)):
        share, old = mix[stream], wide[stream * hidden : (stream + 1) * hidden]
        for column in range(hidden):
            row[column] += share * old[column]
    for column in range(hidden):
        row[column] = widened(narrowed(row[column], like))


@kernel
def _collapse_rows(streams: Any, mix: Any, rows: Any, first: Any, last: Any) -> None:
    count, hidden = mix.shape[1], rows.shape[1]
    wide, row = np.empty(count * hidden, np.float32), np.empty(hidden, np.float32)
    for index in range(first, last):
        widen(streams[index], wide)
        _collapse_row(wide, mix[index], streams, row)
        for column in range(hidden):
            rows[index, column] = narrowed(row[column], rows)


@kernel
def _enter_rows(
    streams: Any,
    mix: Any,
    function: Any,
    base: Any,
    scale: Any,
    weight: Any,
    norm_eps: Any,
    eps: Any,
    iterations: Any,
    rows: Any,
    pre: Any,
    post: Any,
    tables: Any,
    first: Any,
    last: Any,
) -> None:
    count, hidden = mix.shape[1], rows.shape[1]
    wide, row = np.empty(count * hidden, np.float32), np.empty(hidden, np.float32)
    for index in range(first, last):
        widen(streams[index], wide)
        _collapse_row(wide, mix[index], streams, row)
        norm_in_place(row, weight, norm_eps, streams)
        for column in range(hidden):
            rows[index, column] = narrowed(row[column], rows)
        _mix_row(wide, function, base, scale, norm_eps, eps, iterations, pre[index], post[index], tables[index])


@kernel
def _update_rows(output: Any, streams: Any, post: Any, tables: Any, result: Any, first: Any, last: Any) -> None:
    count, hidden = post.shape[1], output.shape[1]
    new, wide, own = np.empty(hidden, np.float32), np.empty(count * hidden, np.float32), np.empty(hidden, np.float32)
    for index in range(first, last):
        widen(streams[index], wide)
        widen(output[index], own)
        for target in range(count):
            share = post[index, target]
            for column in range(hidden):
                new[column] = share * own[column]
            for stream in range(count):
                share, old = tables[index, stream, target], wide[stream * hidden : (stream + 1) * hidden]
                for column in range(hidden):
                    new[column] += share * old[column]
            stored = result[index, target * hidden : (target + 1) * hidden]
            for column in range(hidden):
                stored[column] = narrowed(new[column], result)


@kernel
def _gate_rows(streams: Any, memory: Any, weight: Any, eps: Any, result: Any, first: Any, last: Any) -> None:
    count, hidden = weight.shape
    own, key = np.empty(hidden, np.float32), np.empty(hidden, np.float32)
    weighed = np.empty(hidden, np.float32)
    for index in range(first, last):
        for stream in range(count):
            start, value = stream * hidden, memory[index, count * hidden :]
            stored = result[index, start : start + hidden]
            widen(streams[index, start : start + hidden], own)
            widen(memory[index, start : start + hidden], key)
            for column in range(hidden):
                weighed[column] = own[column] * weight[stream, column]
            agreement = dot(weighed, key) * inverse_rms(own, eps) * inverse_rms(key, eps)
            exact = np.float64(agreement * np.float32(1.0 / math.sqrt(hidden)))
            root = math.copysign(math.sqrt(max(abs(exact), _SMALLEST_AGREEMENT)), exact)
            amount = np.float32(1.0 / (1.0 + math.exp(-root)))
            for column in range(hidden):
                stored[column] = narrowed(own[column] + amount * widened(value[column]), result)


def run_collapse(streams: Tensor, mix: Tensor) -> Tensor:
    """``hyper_connection.collapse``."""
    num_rows, count, hidden = streams.shape
    flat = array(streams).reshape(num_rows, count * hidden)
    rows = empty((num_rows, hidden), streams.dtype)
    over_rows(_collapse_rows, num_rows, count * hidden, flat, array(mix), rows)
    return tensor(rows)


def run_enter(
    streams: Tensor,
    mix: Tensor,
    function: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
    shifted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``hyper_connection.enter`` with the mix that the sub-layer before handed over (``shifted``)."""
    del shifted
    num_rows, count, hidden = streams.shape
    flat = array(streams).reshape(num_rows, count * hidden)
    inputs = (flat, array(mix), array(function), array(base), array(scale), array(norm_weight))
    settings = (np.float32(norm_eps), np.float32(eps), iterations)
    rows, tables = empty((num_rows, hidden), streams.dtype), empty((num_rows, count, count))
    pre, post = empty((num_rows, count)), empty((num_rows, count))
    over_rows(_enter_rows, num_rows, count * count * hidden, *inputs, *settings, rows, pre, post, tables)
    return tensor(rows), tensor(pre), tensor(post), tensor(tables)


def run_update(output: Tensor, streams: Tensor, post: Tensor, combination: Tensor) -> Tensor:
    """``hyper_connection.update``."""
    num_rows, count, hidden = streams.shape
    wide = array(streams).reshape(num_rows, count * hidden)
    new = np.empty_like(wide)
    inputs = (array(output), wide, array(post), array(combination))
    over_rows(_update_rows, num_rows, count * count * hidden, *inputs, new)
    return tensor(new.reshape(streams.shape))


def run_gate(streams: Tensor, key_value: Tensor, query_weight: Tensor, key_weight: Tensor, *, eps: float) -> Tensor:
    """``engram.gate`` with weights from ``engram.pack_gate``."""
    del key_weight
    num_rows, count, hidden = streams.shape
    wide = array(streams).reshape(num_rows, count * hidden)
    new = np.empty_like(wide)
    inputs = (wide, array(key_value), array(query_weight), np.float32(eps))
    over_rows(_gate_rows, num_rows, 4 * count * hidden, *inputs, new)
    return tensor(new.reshape(streams.shape))
