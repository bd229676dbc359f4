"""What the matrix products share: which tile a program makes, how channels are divided, how a tile is stored."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.interpreter import is_interpreting
from deepinfer_cuda.kernels.number_formats import INTERPRETED, rounded

SPLIT_UNIT = tl.constexpr(128)
"""Parts of the channels begin at multiples of this, whatever the tiles: so a sum does not depend on the tiles."""


SUM_TYPE = tl.constexpr(tl.float64 if is_interpreting() else tl.float32)
"""Of running sums. The matrix unit sums 16 channels at a time whatever the tile; the interpreter sums a tile at once,
and only in float64 do tiles of different depth agree."""


@triton.jit
def banded_tile(program, num_out_tiles, num_row_tiles, BAND: tl.constexpr):
    """Tile of a program, ``(along the result's channels, along its rows)``, such that neighbours share what they read.

    Programs walk through a band of ``BAND`` row tiles, all of them for one tile of channels before the next.
    """
    band = program // (BAND * num_out_tiles)
    rows_of_band = tl.minimum(num_row_tiles - band * BAND, BAND)
    within = program - band * BAND * num_out_tiles
    return within // rows_of_band, band * BAND + within % rows_of_band


@triton.jit
def split_bound(split, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """First channel of part ``split`` of ``SPLITS``."""
    return split * (WIDTH // SPLIT_UNIT) // SPLITS * SPLIT_UNIT


@triton.jit
def add_product(a, b, total):
    """``a @ b + total``; in the interpreter, which takes bfloat16 for integers here, from widened operands."""
    if INTERPRETED:
        return tl.dot(a.to(SUM_TYPE), b.to(SUM_TYPE), total, out_dtype=SUM_TYPE)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def store_transposed(
    result_ptr, total, first_out, first_row, num_out, num_rows, result_row_stride,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Round a tile ``[channels, rows]`` and store it as rows of channels."""
    out = first_out + tl.arange(0, BLOCK_OUT)
    row = first_row + tl.arange(0, BLOCK_ROWS)
    at = result_ptr + row.to(tl.int64)[None, :] * result_row_stride + out[:, None]
    inside = (row < num_rows)[None, :] & (out < num_out)[:, None]
    tl.store(at, rounded(total.to(tl.float32), result_ptr.dtype.element_ty), mask=inside)
