"""The end of the way into a sub-layer: norm of the collapsed rows, and the mixes, from sums that are there."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded
from deepinfer_cuda.kernels.stream_mixes import write_mixes
from deepinfer_cuda.kernels.stream_projection import COLLAPSED_SQUARES, SUMS, sum_parts


@triton.jit
def hyper_connection_enter_kernel(
    x_ptr,
    weight_ptr,
    sums_ptr,
    base_ptr,
    scale_ptr,
    pre_ptr,
    post_ptr,
    combination_ptr,
    num_rows,
    width,
    norm_eps,
    eps,
    PARTS: tl.constexpr,
    STREAMS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    ROWS: tl.constexpr,
    MIX_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    COPIES: tl.constexpr,
):
    """Programs ``(c, i)`` norm columns ``c * BLOCK ..`` of rows ``i * ROWS ..`` in place; the last ``c`` makes mixes.

    Row tiles are visited from the last one down: those were written last and may still be in the L2 cache.

    Args:
        x_ptr: Collapsed rows ``[T, width]``, normed in place.
        weight_ptr: ``[width]``.
        sums_ptr: See ``stream_projection_kernel``.
        base_ptr: See ``stream_mixes_kernel``, as for the next four.
        scale_ptr: See there.
        pre_ptr: See there.
        post_ptr: See there.
        combination_ptr: See there.
        num_rows: T.
        width: Channels of a row.
        norm_eps: Added to mean squares.
        eps: See there.
        PARTS: Parts of the sums.
        STREAMS: See there.
        ITERATIONS: See there.
        ROWS: Rows of a program that norms.
        MIX_ROWS: Rows of a program that makes mixes, a multiple of ``ROWS``.
        BLOCK: Columns of a program.
        COPIES: Threads of a program for each of its rows.
    """
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        if tile * ROWS % MIX_ROWS == 0:
            row = tile.to(tl.int64) * ROWS + tl.arange(0, MIX_ROWS)
            write_mixes(
                sums_ptr, base_ptr, scale_ptr, pre_ptr, post_ptr, combination_ptr, row, num_rows, STREAMS * width,
                norm_eps, eps, PARTS, STREAMS, ITERATIONS, MIX_ROWS,
            )  # fmt: skip
    else:
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        line = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = (line < num_rows)[:, None] & (column < width)[None, :]
        address = x_ptr + line[:, None] * width + column[None, :]
        x = tl.load(address, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        # As many copies of a row as there are threads for it: of fewer numbers every thread would load all.
        copy = tl.arange(0, COPIES)[None, :]
        place = (line * SUMS + COLLAPSED_SQUARES)[:, None] + 0 * copy
        squares = sum_parts(sums_ptr, place, num_rows * SUMS, (line < num_rows)[:, None] & (copy >= 0), PARTS)
        squares = tl.max(squares, 1)
        inverse = tl.rsqrt(squares / width + norm_eps)
        result = x * inverse[:, None] * weight[None, :]
        tl.store(address, rounded(result, x_ptr.dtype.element_ty), mask=inside)
