"""Tiles of rows to and from a quantised format, for every kernel that rounds or reads rows.

A tile is ``[ROWS, WIDTH]``; its values cross as bytes ``[ROWS, WIDTH]`` (e4m3) or ``[ROWS, WIDTH / 2]`` (two e2m1
codes, even channel in the low nibble), its scales as bytes ``[ROWS, WIDTH / group]``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import (
    e4m3_to_float,
    fp4_e4m3_scale,
    mxfp4_scale,
    mxfp8_scale,
    power_of_two,
    round_to_e4m3,
)


@triton.jit
def _e2m1_code(x):
    """As ``number_formats.round_to_e2m1``, with integer arithmetic in place of a comparison for each midpoint."""
    magnitude = tl.minimum(tl.abs(x), 6.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = (
        bits + ((bits >> 22) & 1) - 0x3EE00001
    ) >> 22  # + 0x1FFFFF to round, - (126 << 23) for the exponent's bias
    # Below 1 the numbers are multiples of 0.5, the last place of numbers from 2^22 on: adding 2^22 rounds to them.
    subnormal = (magnitude + 4194304.0).to(tl.int32, bitcast=True) & 3
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return sign | tl.where(bits < 0x3F800000, subnormal, normal)


@triton.jit
def round_tile(x, FORMAT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes of values and of scales of a float32 tile."""
    groups = tl.reshape(x, (ROWS, WIDTH // GROUP, GROUP))
    maximum = tl.max(tl.abs(groups), 2)
    if FORMAT == "mxfp8":
        scale, factor = mxfp8_scale(maximum)
    elif FORMAT == "mxfp4":
        scale, factor = mxfp4_scale(maximum)
    else:
        rounded_scale, factor = fp4_e4m3_scale(maximum)
        scale = rounded_scale.to(tl.uint8, bitcast=True)
    scaled = tl.reshape(groups * factor[:, :, None], (ROWS, WIDTH))
    if FORMAT == "mxfp8":
        values = round_to_e4m3(scaled).to(tl.uint8, bitcast=True)
    else:
        low, high = tl.split(tl.reshape(_e2m1_code(scaled), (ROWS, WIDTH // 2, 2)))
        values = (low | (high << 4)).to(tl.uint8)
    return values, scale.to(tl.uint8)


@triton.jit
def _signed_e2m1_to_float(code):
    """Values of 4-bit codes (higher bits are ignored) as float32; the sign of zero is kept."""
    # Exponent and mantissa are bits 2..0, put at float32's place, and the sign is bit 3; 0.5 is e2m1's subnormal.
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def decode_tile(values, scales, FORMAT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The float32 tile that bytes of values and of scales stand for; exact."""
    if FORMAT == "mxfp8":
        numbers = e4m3_to_float(values.to(tl.float8e4nv, bitcast=True))
    else:
        wide = values.to(tl.int32)
        numbers = tl.reshape(tl.join(_signed_e2m1_to_float(wide), _signed_e2m1_to_float(wide >> 4)), (ROWS, WIDTH))
    factor = e4m3_to_float(scales.to(tl.float8e4nv, bitcast=True)) if FORMAT == "fp4_e4m3" else power_of_two(scales)
    groups = tl.reshape(numbers, (ROWS, WIDTH // GROUP, GROUP))
    return tl.reshape(groups * factor[:, :, None], (ROWS, WIDTH))


@triton.jit
def record_offsets(
    slot, block_stride, ROWS_PER_BLOCK: tl.constexpr, VALUE_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr,
    SECTIONED: tl.constexpr,
):  # fmt: skip
    """Where values and scales of flat slot numbers (>= 0) begin in a cache's storage, in bytes.

    The layout is that of ``deepinfer_core.ops.kv_cache.records``.
    """
    begin = (slot // ROWS_PER_BLOCK).to(tl.int64) * block_stride
    row = slot % ROWS_PER_BLOCK
    if SECTIONED:
        return begin + row * VALUE_BYTES, begin + ROWS_PER_BLOCK * VALUE_BYTES + row * SCALE_BYTES
    values = begin + row * (VALUE_BYTES + SCALE_BYTES)
    return values, values + VALUE_BYTES
