"""What the matrix products share: which tile a program makes, how channels are divided, how a tile is stored."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer_cuda.interpreter import is_interpreting
from deepinfer_cuda.kernels.number_formats import INTERPRETED, rounded

SPLIT_UNIT = tl.constexpr(128)
"""Parts of the channels begin at multiples of this, whatever the tiles: so a sum does not depend on the tiles."""
_PIECE_ROWS = tl.constexpr(32)

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
    """First channel of part ``split`` of ``SPLITS``; the end of the last part may lie beyond the channels."""
    return split * ((WIDTH + SPLIT_UNIT - 1) // SPLIT_UNIT) // SPLITS * SPLIT_UNIT


@triton.jit
def after_launch_before(CHAINED: tl.constexpr):
    """Where ``CHAINED``, wait for the kernel before, whose end this one was started ahead of."""
    if CHAINED and not INTERPRETED:
        gdc_wait()


@triton.jit
def before_next_launch(CHAINED: tl.constexpr):
    """Where ``CHAINED``, allow the next kernel to start ahead of this one's end; it waits before it reads."""
    if CHAINED and not INTERPRETED:
        gdc_launch_dependents()


@triton.jit
def add_product(a, b, total):
    """``a @ b + total``; in the interpreter, which takes bfloat16 for integers here, from widened operands."""
    if INTERPRETED:
        return tl.dot(a.to(SUM_TYPE), b.to(SUM_TYPE), total, out_dtype=SUM_TYPE)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def place_transposed(
    total, split, parked_ptr, result_ptr, first_out, first_row, num_out, num_rows, result_row_stride,
    SPLITS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Add a part's sum to that of the parts before, which waits in memory; park it again, or store it after the last.

    A tile is parked by the program that takes it back, so nobody else waits for it, and it stays in L2 meanwhile:
    a second sum in registers would halve the tile, and with that double what is read from L2. Piece by piece, for
    which there are registers beside the sum.
    """
    if BLOCK_ROWS > _PIECE_ROWS:
        left, right = _halves(total, BLOCK_OUT, BLOCK_ROWS)
        place_transposed(
            left, split, parked_ptr, result_ptr, first_out, first_row, num_out, num_rows, result_row_stride,
            SPLITS, BLOCK_OUT, BLOCK_ROWS // 2,
        )  # fmt: skip
        place_transposed(
            right, split, parked_ptr, result_ptr, first_out, first_row + BLOCK_ROWS // 2, num_out, num_rows,
            result_row_stride, SPLITS, BLOCK_OUT, BLOCK_ROWS // 2,
        )  # fmt: skip
    else:
        zero = hidden_zero()
        out, row = zero + tl.arange(0, BLOCK_OUT), zero + tl.arange(0, BLOCK_ROWS)
        begin = first_row.to(tl.int64) * result_row_stride + first_out
        at = row[None, :] * result_row_stride + out[:, None]
        inside = (row < num_rows - first_row)[None, :] & (out < num_out - first_out)[:, None]
        total += tl.load(parked_ptr + begin + at, mask=inside & (split > 0), other=0.0)
        if split == SPLITS - 1:
            tl.store(result_ptr + begin + at, rounded(total, result_ptr.dtype.element_ty), mask=inside)
        else:
            tl.store(parked_ptr + begin + at, total, mask=inside)


@triton.jit
def hidden_zero():
    """0, which LLVM does not know.

    What is computed from it is computed anew each time, and not kept in registers through the loops between: so it is
    not declared pure, or its copies would become one, and sums would be spilled.
    """
    if INTERPRETED:
        return 0
    zero = tl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    return tl.multiple_of(zero, 128)


@triton.jit
def _halves(tile, BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """The halves of a tile along the rows; with the matrix unit's layout only a renaming of registers."""
    return tl.split(tile.reshape(BLOCK_OUT, 2, BLOCK_ROWS // 2).permute(0, 2, 1))


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
