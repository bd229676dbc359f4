"""Mixes of streams from the sums of their projection: sigmoids, and a combination made by Sinkhorn's iteration."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.stream_projection import SQUARES, SUMS, sum_parts


@triton.jit
def stream_mixes_kernel(
    sums_ptr,
    base_ptr,
    scale_ptr,
    pre_ptr,
    post_ptr,
    combination_ptr,
    num_rows,
    row_width,
    norm_eps,
    eps,
    PARTS: tl.constexpr,
    STREAMS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Program ``i`` finishes rows ``i * ROWS ..``; with ``HEAD`` there is only ``pre``, with one scale.

    Args:
        sums_ptr: See ``stream_projection_kernel``.
        base_ptr: Added to the scaled products.
        scale_ptr: Factors of pre, post and combination.
        pre_ptr: ``[T, STREAMS]``.
        post_ptr: ``[T, STREAMS]``.
        combination_ptr: ``[T, STREAMS, STREAMS]``.
        num_rows: T.
        row_width: Numbers of a row of streams.
        norm_eps: Added to the mean square.
        eps: Added to ``pre`` and in the iteration.
        PARTS: Parts of the sums.
        STREAMS: A power of two.
        ITERATIONS: Of the normalisation.
        ROWS: Rows of a program.
        HEAD: See above.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if HEAD:
        write_pre(sums_ptr, base_ptr, scale_ptr, pre_ptr, row, num_rows, row_width, norm_eps, eps, PARTS, STREAMS, ROWS)
    else:
        write_mixes(
            sums_ptr, base_ptr, scale_ptr, pre_ptr, post_ptr, combination_ptr, row, num_rows, row_width, norm_eps, eps,
            PARTS, STREAMS, ITERATIONS, ROWS,
        )  # fmt: skip


@triton.jit
def write_mixes(
    sums_ptr,
    base_ptr,
    scale_ptr,
    pre_ptr,
    post_ptr,
    combination_ptr,
    row,
    num_rows,
    row_width,
    norm_eps,
    eps,
    PARTS: tl.constexpr,
    STREAMS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Pre, post and combination of rows; see the kernel."""
    write_pre(sums_ptr, base_ptr, scale_ptr, pre_ptr, row, num_rows, row_width, norm_eps, eps, PARTS, STREAMS, ROWS)
    inverse = _inverse_mean_square(sums_ptr, row, num_rows, row_width, norm_eps, PARTS)
    stream, real = tl.arange(0, STREAMS)[None, :], (row < num_rows)[:, None]
    products = sum_parts(sums_ptr, row[:, None] * SUMS + STREAMS + stream, num_rows * SUMS, real, PARTS)
    z = products * inverse[:, None] * tl.load(scale_ptr + 1) + tl.load(base_ptr + STREAMS + stream)
    tl.store(post_ptr + row[:, None] * STREAMS + stream, 2.0 * tl.sigmoid(z), mask=real)

    pair = tl.arange(0, STREAMS)[None, :, None] * STREAMS + tl.arange(0, STREAMS)[None, None, :]
    place, real = row[:, None, None] * SUMS + 2 * STREAMS + pair, real[:, :, None]
    products = sum_parts(sums_ptr, place, num_rows * SUMS, real, PARTS)
    z = products * inverse[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * STREAMS + pair)
    combination = _sinkhorn(z, eps, ITERATIONS)
    tl.store(combination_ptr + row[:, None, None] * (STREAMS * STREAMS) + pair, combination, mask=real)


@triton.jit
def write_pre(
    sums_ptr,
    base_ptr,
    scale_ptr,
    pre_ptr,
    row,
    num_rows,
    row_width,
    norm_eps,
    eps,
    PARTS: tl.constexpr,
    STREAMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """``sigmoid + eps`` of the first products."""
    inverse = _inverse_mean_square(sums_ptr, row, num_rows, row_width, norm_eps, PARTS)
    stream, real = tl.arange(0, STREAMS)[None, :], (row < num_rows)[:, None]
    products = sum_parts(sums_ptr, row[:, None] * SUMS + stream, num_rows * SUMS, real, PARTS)
    z = products * inverse[:, None] * tl.load(scale_ptr) + tl.load(base_ptr + stream)
    tl.store(pre_ptr + row[:, None] * STREAMS + stream, tl.sigmoid(z) + eps, mask=real)


@triton.jit
def _inverse_mean_square(sums_ptr, row, num_rows, row_width, norm_eps, PARTS: tl.constexpr):
    """Reciprocal root-mean-square of whole rows."""
    squares = sum_parts(sums_ptr, row * SUMS + SQUARES, num_rows * SUMS, row < num_rows, PARTS)
    return tl.rsqrt(squares / row_width + norm_eps)


@triton.jit
def _sinkhorn(z, eps, ITERATIONS: tl.constexpr):
    """Softmax of each row of ``[.., input, output]``, then columns and rows in turn, columns first and last."""
    a = tl.exp(z - tl.max(z, 2, keep_dims=True))
    a = a / tl.sum(a, 2, keep_dims=True) + eps
    a = a / (tl.sum(a, 1, keep_dims=True) + eps)
    for _ in range(ITERATIONS - 1):
        a = a / (tl.sum(a, 2, keep_dims=True) + eps)
        a = a / (tl.sum(a, 1, keep_dims=True) + eps)
    return a
