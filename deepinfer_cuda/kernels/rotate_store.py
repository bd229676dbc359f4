"""Norm, rotation by position and store of projected rows: what becomes a cached key."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import decode_tile
from deepinfer_cuda.kernels.number_formats import rounded, rounded_through
from deepinfer_cuda.kernels.rms_norm import inverse_rms, scaled_by_weight
from deepinfer_cuda.kernels.store import store_records


@triton.jit
def rotate_tail(
    x, position, present, table_ptr, table_stride,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn adjacent pairs of the last ``TURNED`` of ``WIDTH`` channels; a table row holds cosines, then sines."""
    even, odd = tl.split(tl.reshape(x, (ROWS, BLOCK // 2, 2)))
    pair = tl.arange(0, BLOCK // 2)[None, :] - (WIDTH - TURNED) // 2
    turned = present[:, None] & (pair >= 0) & (pair < TURNED // 2)
    address = table_ptr + position.to(tl.int64)[:, None] * table_stride + pair
    cosine = tl.load(address, mask=turned, other=0.0)
    sine = tl.load(address + TURNED // 2, mask=turned, other=0.0)
    turned_even = tl.where(turned, even * cosine - odd * sine, even)
    turned_odd = tl.where(turned, even * sine + odd * cosine, odd)
    return tl.reshape(tl.join(turned_even, turned_odd), (ROWS, BLOCK))


@triton.jit
def rotate_store_kernel(
    rows_ptr, weight_ptr, positions_ptr, table_ptr, slots_ptr, storage_ptr, result_ptr,
    num_rows, row_stride, table_stride, block_stride, eps,
    TURNED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, ROWS_PER_BLOCK: tl.constexpr, SECTIONED: tl.constexpr,
):  # fmt: skip
    """``weight_ptr`` may be None (no norm), and so may ``result_ptr`` (else it gets the values that were stored)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = row < num_rows
    column = tl.arange(0, BLOCK)[None, :]
    inside = present[:, None] & (column < WIDTH)
    x = tl.load(rows_ptr + row[:, None] * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    kind: tl.constexpr = rows_ptr.dtype.element_ty
    if weight_ptr is not None:
        inverse = inverse_rms(tl.sum(x * x, 1), eps, WIDTH)
        x = rounded_through(scaled_by_weight(x, inverse, weight_ptr, 0, WIDTH, BLOCK), kind)
    position = tl.load(positions_ptr + row, mask=present, other=0)
    x = rounded_through(rotate_tail(x, position, present, table_ptr, table_stride, WIDTH, TURNED, ROWS, BLOCK), kind)
    slot = tl.load(slots_ptr + row, mask=present, other=-1)
    values, scales = store_records(
        storage_ptr, slot, present, x, block_stride,
        WIDTH, BLOCK, ROWS, FORMAT, GROUP, ROWS_PER_BLOCK, SECTIONED,
    )  # fmt: skip
    if result_ptr is not None:
        stored = decode_tile(values, scales, FORMAT, GROUP, ROWS, BLOCK)
        result = rounded(stored, result_ptr.dtype.element_ty)
        tl.store(result_ptr + row[:, None] * WIDTH + column, result, mask=inside)
