"""Compact columns of candidate blocks as entries."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def expand_candidates_kernel(
    columns_ptr,
    candidates_ptr,
    result_ptr,
    columns_stride,
    candidates_stride,
    width,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program ``(t, i)`` maps ``BLOCK`` columns of row ``t``; -1 stays -1."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(columns_ptr + row * columns_stride + index, mask=index < width, other=-1)
    real = column >= 0
    block = tl.load(candidates_ptr + row * candidates_stride + column // SIZE, mask=real, other=0)
    entry = tl.where(real, block * SIZE + column % SIZE, -1)
    tl.store(result_ptr + row * width + index, entry, mask=index < width)
