"""The memory's value added to a residual stream, as far as the stream asks for it."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def _load_wide(ptr, column, WIDTH: tl.constexpr):
    return tl.load(ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _sums(x, key, query_weight_ptr, key_weight_ptr, column, WIDTH: tl.constexpr):
    """Weighted product of stream and key, and the squares of both, summed."""
    weight = _load_wide(query_weight_ptr, column, WIDTH) * _load_wide(key_weight_ptr, column, WIDTH)
    return tl.sum(x * weight * key, 0), tl.sum(x * x, 0), tl.sum(key * key, 0)


@triton.jit
def _amount(agreement):
    """Sigmoid of the signed square root; an agreement below 1e-6 counts as 1e-6."""
    magnitude = tl.abs(agreement)
    root = tl.sqrt_rn(tl.where(magnitude < 1e-6, 1e-6, magnitude))
    is_negative = agreement.to(tl.int32, bitcast=True) < 0
    return 1.0 / (1.0 + tl.exp(tl.where(is_negative, root, -root)))


@triton.jit
def engram_gate_kernel(
    streams_ptr, memory_ptr, query_weight_ptr, key_weight_ptr, result_ptr,
    token_stride, stream_stride, memory_stride, query_stride, key_stride, eps,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One program a stream of a token; a row is held in two pieces, ``FIRST`` columns and ``REST`` (0 for none)."""
    stream = tl.program_id(0) % STREAMS
    token = (tl.program_id(0) // STREAMS).to(tl.int64)
    x_ptr = streams_ptr + token * token_stride + stream * stream_stride
    key_ptr = memory_ptr + token * memory_stride + stream * WIDTH
    value_ptr = memory_ptr + token * memory_stride + STREAMS * WIDTH
    query_weight_ptr += stream * query_stride
    key_weight_ptr += stream * key_stride
    result_ptr += (token * STREAMS + stream) * WIDTH
    column = tl.arange(0, FIRST)
    x = _load_wide(x_ptr, column, WIDTH)
    key = _load_wide(key_ptr, column, WIDTH)
    product, x_squares, key_squares = _sums(x, key, query_weight_ptr, key_weight_ptr, column, WIDTH)
    if REST:
        rest_column = FIRST + tl.arange(0, REST)
        rest = _load_wide(x_ptr, rest_column, WIDTH)
        rest_key = _load_wide(key_ptr, rest_column, WIDTH)
        sums = _sums(rest, rest_key, query_weight_ptr, key_weight_ptr, rest_column, WIDTH)
        product, x_squares, key_squares = product + sums[0], x_squares + sums[1], key_squares + sums[2]
    inverse = tl.rsqrt(x_squares / WIDTH + eps) * tl.rsqrt(key_squares / WIDTH + eps)
    amount = _amount(product * inverse * (1.0 / tl.sqrt_rn(WIDTH * 1.0)))
    kind: tl.constexpr = result_ptr.dtype.element_ty
    result = x + amount * _load_wide(value_ptr, column, WIDTH)
    tl.store(result_ptr + column, rounded(result, kind), mask=column < WIDTH)
    if REST:
        result = rest + amount * _load_wide(value_ptr, rest_column, WIDTH)
        tl.store(result_ptr + rest_column, rounded(result, kind), mask=rest_column < WIDTH)
