"""Rows of an embedding table by token id."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def token_embedding_kernel(
    ids_ptr, table_ptr, result_ptr, vocabulary, table_row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """One row a program and piece of ``BLOCK`` columns; ids outside the table give zeros."""
    row = tl.program_id(0)
    token = tl.load(ids_ptr + row).to(tl.int64)
    known = (token >= 0) & (token < vocabulary)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    numbers = tl.load(table_ptr + token * table_row_stride + column, mask=inside & known, other=0.0)
    at = result_ptr + row.to(tl.int64) * WIDTH + column
    tl.store(at, rounded(numbers.to(tl.float32), result_ptr.dtype.element_ty), mask=inside)
