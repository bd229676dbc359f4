"""Rows normed, rotated and rounded in one pass, in compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.reference.compiled import array, empty, kernel, narrowed, over_rows, reduction, tensor, widened
from deepinfer_core.reference.compiled_codes import GridNumbers, Records, grid_numbers, round_row, write_record
from deepinfer_core.reference.rounding import rounded_rows
from deepinfer_core.tensor import Cache, QuantTensor

if TYPE_CHECKING:
    from deepinfer_core.reference.compiled import Array

_NO_GRID: GridNumbers = (0, 0, 0, 0, 0)
_NO_WEIGHT = torch.empty(0)
_NO_TABLE = np.empty((0, 0), np.float32)


@reduction
def dot(a: Any, b: Any) -> Any:
    """Sum of the products of two float32 rows."""
    total = np.float32(0.0)
    for column in range(len(a)):
        total += a[column] * b[column]
    return total


@reduction
def four_dots(a: Any, b: Any, c: Any, d: Any, row: Any) -> Any:
    """Sums of the products of four float32 rows and one more, which is read once."""
    first, second, third, fourth = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for column in range(len(row)):
        value = row[column]
        first += a[column] * value
        second += b[column] * value
        third += c[column] * value
        fourth += d[column] * value
    return first, second, third, fourth


@kernel
def dots(table: Any, row: Any, result: Any) -> None:
    """Sums of the products of every row of a float32 table and one more row."""
    count = len(table)
    for line in range(0, count - 3, 4):
        a, b, c, d = four_dots(table[line], table[line + 1], table[line + 2], table[line + 3], row)
        result[line], result[line + 1], result[line + 2], result[line + 3] = a, b, c, d
    for line in range(count - count % 4, count):
        result[line] = dot(table[line], row)


@kernel
def inverse_rms(row: Any, eps: Any) -> Any:
    """One over the root-mean-square of a float32 row."""
    return np.float32(1.0) / np.sqrt(np.float32(dot(row, row) / np.float32(len(row)) + eps))


@kernel
def widen(source: Any, result: Any) -> None:
    """A row of activations as float32 numbers."""
    for column in range(len(source)):
        result[column] = widened(source[column])


@kernel
def norm_in_place(row: Any, weight: Any, eps: Any, like: Any) -> None:
    """Norm a float32 row; the result is rounded to the element type of ``like``."""
    inverse = inverse_rms(row, eps)
    for column in range(len(row)):
        row[column] = widened(narrowed(row[column] * inverse * widened(weight[column]), like))


@kernel
def rotate_in_place(row: Any, angles: Any, sign: Any) -> None:
    """Turn the trailing channel pairs of a float32 row: cosines, then sines; ``sign`` -1 turns back."""
    pairs = len(angles) // 2
    first = len(row) - 2 * pairs
    for pair in range(pairs):
        cosine, sine = angles[pair], angles[pairs + pair] * sign
        even, odd = row[first + 2 * pair], row[first + 2 * pair + 1]
        row[first + 2 * pair] = even * cosine - odd * sine
        row[first + 2 * pair + 1] = even * sine + odd * cosine


@kernel
def _norm_rows(x: Any, weight: Any, eps: Any, grid: Any, result: Any, first: Any, last: Any) -> None:
    row = np.empty(x.shape[1], np.float32)
    for index in range(first, last):
        widen(x[index], row)
        norm_in_place(row, weight, eps, x)
        if grid[0]:
            round_row(row, grid, result[index])
        else:
            for column in range(len(row)):
                result[index, column] = narrowed(row[column], result)


@kernel
def _round_rows(x: Any, grid: Any, result: Any, first: Any, last: Any) -> None:
    row = np.empty(x.shape[1], np.float32)
    for index in range(first, last):
        widen(x[index], row)
        round_row(row, grid, result[index])


@kernel
def _rotate_rows(x: Any, positions: Any, table: Any, sign: Any, result: Any, first: Any, last: Any) -> None:
    row = np.empty(x.shape[2], np.float32)
    for index in range(first, last):
        for head in range(x.shape[1]):
            widen(x[index, head], row)
            rotate_in_place(row, table[positions[index]], sign)
            for column in range(len(row)):
                result[index, head, column] = narrowed(row[column], result)


@kernel
def _store_rows(
    x: Any,
    positions: Any,
    table: Any,
    slots: Any,
    weight: Any,
    eps: Any,
    data: Any,
    layout: Any,
    group: Any,
    grid: Any,
    is_plain: Any,
    first: Any,
    last: Any,
) -> None:
    row = np.empty(x.shape[1], np.float32)
    for index in range(first, last):
        if slots[index] >= 0:
            widen(x[index], row)
            if len(weight):
                norm_in_place(row, weight, eps, x)
            if not is_plain:
                rotate_in_place(row, table[positions[index]], np.float32(1.0))
                for column in range(len(row)):
                    row[column] = widened(narrowed(row[column], x))
            write_record(row, slots[index], layout, group, grid, data)


def run_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """``norm.rms_norm``."""
    rows = array(x)
    result = np.empty_like(rows)
    over_rows(_norm_rows, len(rows), 2 * rows.shape[1], rows, array(weight), np.float32(eps), _NO_GRID, result)
    return tensor(result)


def run_rms_norm_quantize(x: Tensor, weight: Tensor, *, eps: float, format: str) -> QuantTensor:
    """``norm.rms_norm_quantize``: the normed row is rounded to the type of ``x``, then to the format."""
    rows = array(x)
    result = empty(rows.shape)
    arguments = (rows, array(weight), np.float32(eps), grid_numbers(format), result)
    over_rows(_norm_rows, len(rows), 4 * rows.shape[1], *arguments)
    return rounded_rows(tensor(result), format)


def run_quantize(x: Tensor, *, format: str) -> QuantTensor:
    """``quantize.quantize`` to a format with power-of-two scales."""
    rows = array(x)
    result = empty(rows.shape)
    width = rows.shape[-1]
    flat, values = rows.reshape(-1, width), result.reshape(-1, width)
    over_rows(_round_rows, len(flat), 4 * width, flat, grid_numbers(format), values)
    return rounded_rows(tensor(result), format)


def run_apply_rotary(x: Tensor, positions: Tensor, table: Tensor, *, inverse: bool = False) -> Tensor:
    """``rotary.apply_rotary``."""
    rows = array(x)
    result = np.empty_like(rows)
    sign = np.float32(-1.0 if inverse else 1.0)
    over_rows(
        _rotate_rows, len(rows), rows.shape[1] * rows.shape[2], rows, array(positions), array(table), sign, result
    )
    return tensor(result)


def run_rotate_store(
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    cache: Cache,
    norm_weight: Tensor | None = None,
    *,
    eps: float,
) -> None:
    """``kv_cache.rotate_store``."""
    weight = _NO_WEIGHT if norm_weight is None else norm_weight
    _store(rows, array(positions), array(table), array(slots), cache, weight, eps)


def run_store(rows: Tensor, slots: Tensor, cache: Cache) -> None:
    """``kv_cache.store``."""
    place = array(slots)
    _store(rows, place, None, place, cache, _NO_WEIGHT, 0.0)


def _store(
    rows: Tensor,
    positions: Array,
    table: Array | None,
    slots: Array,
    cache: Cache,
    weight: Tensor,
    eps: float,
) -> None:
    """Quantise rows into their slots, normed where there is a weight and rotated where there is a table."""
    records, x = Records.of(cache), array(rows)
    is_plain = table is None
    angles = _NO_TABLE if table is None else table
    arguments = (x, positions, angles, slots, array(weight), np.float32(eps), records.bytes, records.layout)
    over_rows(_store_rows, len(x), 8 * x.shape[1], *arguments, records.group, records.grid, is_plain)
