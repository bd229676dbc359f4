"""Shared expert plus routed experts in slot order."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def combine_experts_kernel(
    routed_ptr, shared_ptr, ids_ptr, result_ptr,
    routed_row_stride, routed_slot_stride, shared_row_stride, ids_row_stride, result_row_stride,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_IDS: tl.constexpr,
):  # fmt: skip
    """One program sums a part of one row in float32; slots whose expert is -1 are not read."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.load(shared_ptr + row * shared_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    for slot in tl.static_range(SLOTS):
        present = inside
        if HAS_IDS:
            present = inside & (tl.load(ids_ptr + row * ids_row_stride + slot) >= 0)
        routed = routed_ptr + row * routed_row_stride + slot * routed_slot_stride
        total += tl.load(routed + column, mask=present, other=0.0).to(tl.float32)
    tl.store(result_ptr + row * result_row_stride + column, rounded(total, result_ptr.dtype.element_ty), mask=inside)
