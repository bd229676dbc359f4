"""Rotation of heads by position; of results also back and straight to MXFP8. Several heads for a program."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.group_rounding import decode_tile, round_tile
from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def load_rotated(
    x_ptr, positions_ptr, table_ptr, vector, inside, row_stride, table_stride, NUM_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr, TURNED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Heads ``[vectors, CHANNELS]`` in float32, adjacent pairs of the last ``TURNED`` channels turned by position.

    ``vector`` holds numbers ``row * NUM_HEADS + head``, ``inside`` says which of them exist. A row of the table has the
    cosines of a position, then its sines.
    """
    row = vector // NUM_HEADS
    channel = tl.arange(0, CHANNELS)
    at = x_ptr + row[:, None] * row_stride + (vector % NUM_HEADS)[:, None] * CHANNELS + channel[None, :]
    x = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (vector.shape[0], CHANNELS // 2, 2)))
    pair = tl.arange(0, CHANNELS // 2)[None, :] - (CHANNELS - TURNED) // 2
    turned = inside[:, None] & (pair >= 0)
    position = tl.load(positions_ptr + row, mask=inside, other=0).to(tl.int64)
    angle = table_ptr + position[:, None] * table_stride + pair
    cosine = tl.load(angle, mask=turned, other=1.0)
    sine = tl.load(angle + TURNED // 2, mask=turned, other=0.0)
    if INVERSE:
        sine = -sine
    turned_even = tl.where(turned, even * cosine - odd * sine, even)
    turned_odd = tl.where(turned, even * sine + odd * cosine, odd)
    return tl.reshape(tl.join(turned_even, turned_odd), (vector.shape[0], CHANNELS))


@triton.jit(do_not_specialize=["num_vectors"])
def apply_rotary_kernel(
    x_ptr, positions_ptr, table_ptr, result_ptr, num_vectors, row_stride, table_stride, NUM_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr, TURNED: tl.constexpr, INVERSE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    vector = tl.program_id(0).to(tl.int64) * VECTORS + tl.arange(0, VECTORS)
    inside = vector < num_vectors
    x = load_rotated(
        x_ptr, positions_ptr, table_ptr, vector, inside, row_stride, table_stride, NUM_HEADS, CHANNELS, TURNED, INVERSE
    )
    at = result_ptr + vector[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    tl.store(at, rounded(x, result_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["num_vectors"])
def rotate_back_quantize_kernel(
    x_ptr, positions_ptr, table_ptr, values_ptr, scales_ptr, num_vectors, row_stride, table_stride,
    NUM_HEADS: tl.constexpr, CHANNELS: tl.constexpr, TURNED: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Rotate back, round to the type of ``x_ptr`` and then to MXFP8.

    ``values_ptr`` gets bytes and ``scales_ptr`` their scales; or ``scales_ptr`` is None and ``values_ptr`` gets the
    numbers for which these would stand.
    """
    vector = tl.program_id(0).to(tl.int64) * VECTORS + tl.arange(0, VECTORS)
    inside = vector < num_vectors
    x = load_rotated(
        x_ptr, positions_ptr, table_ptr, vector, inside, row_stride, table_stride, NUM_HEADS, CHANNELS, TURNED, True
    )
    x = rounded(x, x_ptr.dtype.element_ty).to(tl.float32)
    values, scales = round_tile(x, "mxfp8", 32, VECTORS, CHANNELS)
    at = vector[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    if scales_ptr is None:
        numbers = decode_tile(values, scales, "mxfp8", 32, VECTORS, CHANNELS)
        tl.store(values_ptr + at, rounded(numbers, values_ptr.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(values_ptr + at, values, mask=inside[:, None])
        group = vector[:, None] * (CHANNELS // 32) + tl.arange(0, CHANNELS // 32)[None, :]
        tl.store(scales_ptr + group, scales, mask=inside[:, None])
