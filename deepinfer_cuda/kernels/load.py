"""Values of cached rows."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import decode_tile, record_offsets
from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def load_kernel(
    slots_ptr, storage_ptr, result_ptr, num_rows, block_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    ROWS_PER_BLOCK: tl.constexpr, SECTIONED: tl.constexpr,
):  # fmt: skip
    """Slot -1 gives zeros: no byte of it is read."""
    PACKED: tl.constexpr = 1 if FORMAT == "mxfp8" else 2
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    filled = (slot >= 0)[:, None]
    value_offset, scale_offset = record_offsets(
        tl.maximum(slot, 0), block_stride, ROWS_PER_BLOCK, WIDTH // PACKED, WIDTH // GROUP, SECTIONED
    )
    byte = tl.arange(0, BLOCK // PACKED)[None, :]
    present = filled & (byte < WIDTH // PACKED)
    values = tl.load(storage_ptr + value_offset[:, None] + byte, mask=present, other=0)
    group = tl.arange(0, BLOCK // GROUP)[None, :]
    present = filled & (group < WIDTH // GROUP)
    scales = tl.load(storage_ptr + scale_offset[:, None] + group, mask=present, other=0)
    x = decode_tile(values, scales, FORMAT, GROUP, ROWS, BLOCK)
    column = tl.arange(0, BLOCK)[None, :]
    tl.store(
        result_ptr + row[:, None] * WIDTH + column, rounded(x, result_ptr.dtype.element_ty),
        mask=(row < num_rows)[:, None] & (column < WIDTH),
    )  # fmt: skip
