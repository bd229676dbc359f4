"""Quantised rows into a cache."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import record_offsets, round_tile


@triton.jit
def store_records(
    storage_ptr, slot, present, x, block_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, ROWS_PER_BLOCK: tl.constexpr, SECTIONED: tl.constexpr,
):  # fmt: skip
    """Round rows, write those that are ``present`` and have a slot >= 0; returns bytes of values and of scales."""
    PACKED: tl.constexpr = 1 if FORMAT == "mxfp8" else 2
    values, scales = round_tile(x, FORMAT, GROUP, ROWS, BLOCK)
    kept = (present & (slot >= 0))[:, None]
    value_offset, scale_offset = record_offsets(
        tl.maximum(slot, 0), block_stride, ROWS_PER_BLOCK, WIDTH // PACKED, WIDTH // GROUP, SECTIONED
    )
    byte = tl.arange(0, BLOCK // PACKED)[None, :]
    tl.store(storage_ptr + value_offset[:, None] + byte, values, mask=kept & (byte < WIDTH // PACKED))
    group = tl.arange(0, BLOCK // GROUP)[None, :]
    tl.store(storage_ptr + scale_offset[:, None] + group, scales, mask=kept & (group < WIDTH // GROUP))
    return values, scales


@triton.jit
def store_kernel(
    rows_ptr, slots_ptr, storage_ptr, num_rows, row_stride, block_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    ROWS_PER_BLOCK: tl.constexpr, SECTIONED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = row < num_rows
    slot = tl.load(slots_ptr + row, mask=present, other=-1)
    column = tl.arange(0, BLOCK)[None, :]
    needed = (slot >= 0)[:, None] & (column < WIDTH)
    x = tl.load(rows_ptr + row[:, None] * row_stride + column, mask=needed, other=0.0).to(tl.float32)
    store_records(
        storage_ptr, slot, present, x, block_stride,
        WIDTH, BLOCK, ROWS, FORMAT, GROUP, ROWS_PER_BLOCK, SECTIONED,
    )  # fmt: skip
