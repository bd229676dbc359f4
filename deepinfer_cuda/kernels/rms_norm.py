"""Root-mean-square norm of rows, one program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, result_ptr, x_row_stride, result_row_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    result = x * inverse * weight
    tl.store(result_ptr + row * result_row_stride + column, rounded(result, result_ptr.dtype.element_ty), mask=inside)
