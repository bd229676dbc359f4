"""FP8 and FP4 inside kernels: decode, round, scale. The rules are those of ``deepinfer_core.ops.quantize.rounding``.

Scales cross as bytes: ``ue8m0`` is the exponent of a power of two, ``e4m3`` an 8-bit float.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.interpreter import is_interpreting

INTERPRETED = tl.constexpr(is_interpreting())
"""True in Triton's interpreter, whose casts differ from hardware: to bf16 it cuts off instead of rounding, to FP8 it
loses the smallest numbers (spec/dependencies.md 2.2). Kernels round through this file and never by a bare ``.to``."""
_THROUGH_BF16 = tl.constexpr(
    "{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, $3, $2; shl.b32 $0, pair, 16; and.b32 $1, pair, 0xFFFF0000; }"
)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 numbers as ``dtype`` (float32 or bfloat16), to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        up = bits + 0x7FFF + ((bits >> 16) & 1)
        kept = tl.where(x != x, bits | 0x400000, up)
        return ((kept >> 16) << 16).to(tl.float32, bitcast=True).to(tl.bfloat16)
    return x.to(dtype)


@triton.jit
def rounded_through(x, dtype: tl.constexpr):
    """float32 numbers rounded to ``dtype`` and widened again, for a result that is read on: two an instruction."""
    if INTERPRETED or dtype != tl.bfloat16:
        return rounded(x, dtype).to(tl.float32)
    return tl.inline_asm_elementwise(_THROUGH_BF16, "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2)


@triton.jit
def power_of_two(biased):
    """``2^(biased - 127)`` as float32 for ``ue8m0`` bytes; 0 gives the subnormal 2^-127."""
    wide = biased.to(tl.int32)
    return tl.where(wide == 0, 1 << 22, wide << 23).to(tl.float32, bitcast=True)


@triton.jit
def mxfp8_scale(maximum):
    """Scale byte (int32) of an MXFP8 group, and the float32 factor by which its numbers are multiplied.

    The scale is ``2^ceil(log2(maximum / 448))``. 448 is 1.75 * 2^8, so the exponent of the maximum says it all, and
    its mantissa whether to round up: no division, no logarithm.
    """
    bits = tl.maximum(maximum, 1e-4).to(tl.int32, bitcast=True)
    biased = ((bits + 0x1FFFFF) >> 23) - 8
    return biased, power_of_two(254 - biased)


@triton.jit
def mxfp4_scale(maximum):
    """Scale byte (int32) of an MXFP4 group, and the float32 factor by which its numbers are multiplied.

    As :func:`mxfp8_scale`, with the largest number 6 = 1.5 * 2^2.
    """
    bits = tl.maximum(maximum, 7.052966104933725e-38).to(tl.int32, bitcast=True)  # 6 * 2^-126
    biased = ((bits + 0x3FFFFF) >> 23) - 2
    return biased, power_of_two(254 - biased)


@triton.jit
def e4m3_to_float(data):
    """Values of ``float8_e4m3fn`` data as float32, exact."""
    return data.to(tl.float32)


@triton.jit
def e4m3_byte_to_float(byte):
    """Values of e4m3 bit patterns in uint8 as float32, exact; NaN patterns give +-480."""
    wide = byte.to(tl.int32)
    magnitude = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    return tl.where(wide >= 128, -magnitude, magnitude)


@triton.jit
def round_to_e4m3(x):
    """Nearest ``float8_e4m3fn``, ties to even, saturating at +-448; NaN stays NaN."""
    if INTERPRETED:
        clamped = tl.where(x != x, x, tl.minimum(tl.maximum(x, -448.0), 448.0))
        return _e4m3_bits(clamped).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return x.to(tl.float8e4nv)  # the instruction saturates and keeps NaN


@triton.jit
def _e4m3_bits(x):
    """Bit pattern of the nearest e4m3 number of ``|x| <= 448`` or NaN, by integer arithmetic."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    sign = (bits >> 24) & 0x80
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the numbers are multiples of 2^-9: adding 2^14 (one unit of its last place is 2^-9) rounds to them.
    absolute = magnitude.to(tl.float32, bitcast=True)
    subnormal = (absolute + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    finite = sign | tl.where(magnitude < 0x3C800000, subnormal, normal)
    return tl.where(magnitude > 0x7F800000, 0x7F, finite)


@triton.jit
def fp4_e4m3_scale(maximum):
    """Scale (``float8_e4m3fn``) of an FP4 group of a main cache, and the float32 factor for its numbers."""
    floored = tl.maximum(maximum, 0.01171875)  # 6 * 2^-9
    rounded = round_to_e4m3(floored * (1.0 / 6.0))
    return rounded, tl.div_rn(1.0, rounded.to(tl.float32))


@triton.jit
def e2m1_to_float(code):
    """Values of 4-bit codes (0..15 in an integer type; higher bits are ignored) as float32."""
    wide = code.to(tl.int32)
    # Exponent and mantissa of 0.5, 1, 1.5, 2, 3, 4, 6 are bits 2..0, shifted to float32's place; 0.5 is subnormal.
    magnitude = ((wide & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126
    return tl.where((wide & 8) != 0, -magnitude, magnitude)


@triton.jit
def round_to_e2m1(x):
    """4-bit code (int32, 0..15) of the nearest e2m1 number, ties to the even code, saturating at +-6."""
    magnitude = tl.abs(x)
    code = (magnitude > 0.25).to(tl.int32) + (magnitude >= 0.75).to(tl.int32) + (magnitude > 1.25).to(tl.int32)
    code += (magnitude >= 1.75).to(tl.int32) + (magnitude > 2.5).to(tl.int32)
    code += (magnitude >= 3.5).to(tl.int32) + (magnitude > 5.0).to(tl.int32)
    negative = x.to(tl.int32, bitcast=True) < 0
    return code | tl.where(negative, 8, 0)
