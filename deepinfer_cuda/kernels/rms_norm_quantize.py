"""Root-mean-square norm of rows, rounded to their own type and then to a quantised format."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded_through
from deepinfer_cuda.kernels.quantize import store_rounded
from deepinfer_cuda.kernels.rms_norm import inverse_rms, load_columns, scaled_by_weight


@triton.jit
def rms_norm_quantize_kernel(
    x_ptr, weight_ptr, values_ptr, scales_ptr, num_rows, x_row_stride, eps,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr, ROWS: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """As ``rms_norm_kernel``, with quantised rows as the result; both pieces are whole groups."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    x = load_columns(x_ptr, row, x_row_stride, num_rows, 0, WIDTH, FIRST)
    squares = tl.sum(x * x, 1)
    if REST:
        rest = load_columns(x_ptr, row, x_row_stride, num_rows, FIRST, WIDTH, REST)
        squares += tl.sum(rest * rest, 1)
    inverse = inverse_rms(squares, eps, WIDTH)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    normed = rounded_through(scaled_by_weight(x, inverse, weight_ptr, 0, WIDTH, FIRST), kind)
    store_rounded(values_ptr, scales_ptr, normed, row, num_rows, 0, WIDTH, FIRST, ROWS, FORMAT, GROUP)
    if REST:
        normed_rest = rounded_through(scaled_by_weight(rest, inverse, weight_ptr, FIRST, WIDTH, REST), kind)
        store_rounded(values_ptr, scales_ptr, normed_rest, row, num_rows, FIRST, WIDTH, REST, ROWS, FORMAT, GROUP)
