"""Tiles of expert weights as operands of a matrix product: 32-bit words of FP4 or FP8 codes in, bfloat16 numbers out.

Weights are the row operand of wgmma, which is read from registers: a lane holds two neighbouring channels of every
*plane*, in one register. Plane ``p`` of a step of 128 channels is channels ``32 p .. 32 p + 31``: one scale. A word
holds such a pair of four planes (FP4) or of two (FP8), placed so that a shift and a mask make each pair two bfloat16
numbers that are wrong by a power of two; the factor that corrects it carries the scale too. Nothing moves between
lanes, and the product runs over channels in their natural order. Packed by ``deepinfer_cuda.ops.expert_packing``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED

STEP = tl.constexpr(128)
"""Channels of one step of a product."""
TILE_ROWS = tl.constexpr(64)
"""Rows of a packed tile."""
ROW_WORDS = tl.constexpr(16)
"""Words of a row of a packed tile: one for each pair of channels of a plane."""
TILE_WORDS = tl.constexpr(64 * 16)
"""Words of a packed tile. FP8 weights have two tiles for each step."""

FP4_PLANES = tl.constexpr(
    """{
    .reg .b32 a, b;
    and.b32 a, $8, 0x81C081C0;  mul.rn.bf16x2 a, a, $9;  mov.b32 {$0, $1}, a;
    shf.r.wrap.b32 a, $8, $8, 4;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 a, a, $10;  mov.b32 {$2, $3}, a;
    shl.b32 a, $8, 6;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 a, a, $11;  mov.b32 {$4, $5}, a;
    shl.b32 a, $8, 2;  and.b32 a, a, 0x80C080C0;  shr.b32 b, $8, 6;
    lop3.b32 a, b, 0x01000100, a, 0xEA;  mul.rn.bf16x2 a, a, $12;  mov.b32 {$6, $7}, a;
    }"""
)
"""A word -> two numbers of each plane: sign to bit 15, exponent and mantissa to bits 8..6, times the plane's factor.

Each bit of a word belongs to one code; a search found no way to divide them that takes fewer instructions."""

FP8_PLANES = tl.constexpr(
    """{
    .reg .b32 a, b;
    shl.b32 a, $4, 4;  and.b32 a, a, 0x07F007F0;  shl.b32 b, $4, 8;
    lop3.b32 a, b, 0x80008000, a, 0xEA;  mul.rn.bf16x2 a, a, $5;  mov.b32 {$0, $1}, a;
    shr.b32 a, $4, 4;  and.b32 a, a, 0x07F007F0;
    lop3.b32 a, $4, 0x80008000, a, 0xEA;  mul.rn.bf16x2 a, a, $6;  mov.b32 {$2, $3}, a;
    }"""
)
"""As ``FP4_PLANES`` for two planes: sign to bit 15, exponent and mantissa to bits 10..4."""

FACTOR = tl.constexpr("{ prmt.b32 $0, $1, 0, $2;  shl.b32 $0, $0, 7; }")
"""An exponent field -> its power of two as a bfloat16 number, twice."""


@triton.jit
def weight_step(words_ptrs, scales_ptrs, FORMAT: tl.constexpr):
    """The numbers of one step of some rows, ``[rows, 128]`` bf16.

    Args:
        words_ptrs: ``[rows, 16]`` addresses of the step's (first) words.
        scales_ptrs: ``[rows]`` addresses of the step's factors: the exponent field of plane ``p`` in byte ``p``.
        FORMAT: ``"mxfp4"`` or ``"fp8_block32"``.
    """
    words = tl.load(words_ptrs)
    scales = tl.expand_dims(tl.load(scales_ptrs), 1)
    if FORMAT == "mxfp4":
        p0, p1, p2, p3 = _fp4_planes(words, scales)
    else:
        p0, p1 = _fp8_planes(words, scales, 0)
        p2, p3 = _fp8_planes(tl.load(words_ptrs + TILE_WORDS), scales, 2)
    planes = tl.join(tl.join(p0, p1), tl.join(p2, p3))
    return tl.reshape(tl.permute(planes, (0, 4, 3, 1, 2)), (words.shape[0], STEP))


@triton.jit
def product(weights, x, total):
    """``total + weights @ x`` of bfloat16 operands, summed in float32."""
    if INTERPRETED:  # in float64, where the order in which NumPy sums, which is not that of a row alone, does not show
        return total + tl.dot(weights.to(tl.float64), x.to(tl.float64)).to(tl.float32)
    return tl.dot(weights, x, total)


@triton.jit
def _fp4_planes(words, scales):
    """Numbers of the four planes, ``[rows, 16, 2]`` each."""
    if INTERPRETED:
        bits = words.to(tl.uint32, bitcast=True)
        last = ((bits << 2) & 0x80C080C0) | ((bits >> 6) & 0x01000100)
        return (
            _pairs(bits & 0x81C081C0, scales),
            _pairs(((bits >> 4) | (bits << 28)) & 0x81C081C0, scales >> 8),
            _pairs((bits << 6) & 0x81C081C0, scales >> 16),
            _pairs(last, scales >> 24),
        )
    a0, a1, b0, b1, c0, c1, d0, d1 = tl.inline_asm_elementwise(
        FP4_PLANES,
        "=&h,=&h,=&h,=&h,=&h,=&h,=&h,=&h,r,r,r,r,r",
        [words, _factor(scales, 0), _factor(scales, 1), _factor(scales, 2), _factor(scales, 3)],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=1,
    )
    return tl.join(a0, a1), tl.join(b0, b1), tl.join(c0, c1), tl.join(d0, d1)


@triton.jit
def _fp8_planes(words, scales, FIRST: tl.constexpr):
    """Numbers of planes ``FIRST`` and ``FIRST + 1``, ``[rows, 16, 2]`` each."""
    if INTERPRETED:
        bits = words.to(tl.uint32, bitcast=True)
        low = ((bits << 8) & 0x80008000) | ((bits << 4) & 0x07F007F0)
        high = (bits & 0x80008000) | ((bits >> 4) & 0x07F007F0)
        return _pairs(low, scales >> (8 * FIRST)), _pairs(high, scales >> (8 * FIRST + 8))
    a0, a1, b0, b1 = tl.inline_asm_elementwise(
        FP8_PLANES,
        "=&h,=&h,=&h,=&h,r,r,r",
        [words, _factor(scales, FIRST), _factor(scales, FIRST + 1)],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=1,
    )
    return tl.join(a0, a1), tl.join(b0, b1)


@triton.jit
def _factor(scales, PLANE: tl.constexpr):
    """The power of two of one plane as a pair of bfloat16 numbers, made from its exponent field."""
    BYTES: tl.constexpr = 0x4040 + 0x0101 * PLANE
    return tl.inline_asm_elementwise(FACTOR, "=&r,r,r", [scales, BYTES], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _pairs(bits, scales):
    """Bit patterns of pairs of bfloat16 numbers times a power of two; the interpreter has no bfloat16 arithmetic."""
    factor = ((scales & 0xFF) << 23).to(tl.float32, bitcast=True)
    low = (bits << 16).to(tl.float32, bitcast=True) * factor
    high = (bits & 0xFFFF0000).to(tl.float32, bitcast=True) * factor
    return tl.join(low.to(tl.bfloat16), high.to(tl.bfloat16))
