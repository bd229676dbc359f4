"""Root-mean-square norm of rows."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def load_columns(ptr, row, row_stride, num_rows, START: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns ``START ..`` of a tile of rows as float32; zeros outside the tensor."""
    column = START + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows)[:, None] & (column < WIDTH)
    return tl.load(ptr + row[:, None] * row_stride + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def inverse_rms(squares, eps, WIDTH: tl.constexpr):
    """Factor that scales a row of this sum of squares to unit root-mean-square."""
    return tl.rsqrt(squares / WIDTH + eps)


@triton.jit
def scaled_by_weight(x, inverse, weight_ptr, START: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """``x * inverse * weight`` of some columns, float32."""
    column = START + tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    return x * inverse[:, None] * weight[None, :]


@triton.jit
def _store_columns(ptr, x, row, row_stride, num_rows, START: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = START + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows)[:, None] & (column < WIDTH)
    tl.store(ptr + row[:, None] * row_stride + column, rounded(x, ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, result_ptr, num_rows, x_row_stride, result_row_stride, eps,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A row is held in two pieces, ``FIRST`` columns and ``REST`` (0 for none), so that few lanes are idle."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    x = load_columns(x_ptr, row, x_row_stride, num_rows, 0, WIDTH, FIRST)
    squares = tl.sum(x * x, 1)
    if REST:
        rest = load_columns(x_ptr, row, x_row_stride, num_rows, FIRST, WIDTH, REST)
        squares += tl.sum(rest * rest, 1)
    inverse = inverse_rms(squares, eps, WIDTH)
    normed = scaled_by_weight(x, inverse, weight_ptr, 0, WIDTH, FIRST)
    _store_columns(result_ptr, normed, row, result_row_stride, num_rows, 0, WIDTH, FIRST)
    if REST:
        normed_rest = scaled_by_weight(rest, inverse, weight_ptr, FIRST, WIDTH, REST)
        _store_columns(result_ptr, normed_rest, row, result_row_stride, num_rows, FIRST, WIDTH, REST)
