"""Sum the parts of a matrix product whose channels were divided among programs."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded
from deepinfer_cuda.kernels.product_tiles import after_launch_before


@triton.jit
def sum_splits_kernel(parts_ptr, result_ptr, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """``parts[0] + parts[1] + ...`` in this order, one rounding.

    Args:
        parts_ptr: ``[SPLITS, size]`` float32.
        result_ptr: ``[size]``.
        size: Numbers of the result.
        SPLITS: Parts.
        BLOCK: Numbers of a program.
        CHAINED: See :func:`after_launch_before`.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    after_launch_before(CHAINED)
    total = tl.load(parts_ptr + at, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts_ptr + split * size.to(tl.int64) + at, mask=inside, other=0.0)
    tl.store(result_ptr + at, rounded(total, result_ptr.dtype.element_ty), mask=inside)
