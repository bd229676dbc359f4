"""Tiles of expert weights as operands of a matrix product: 16-bit words of FP4 or FP8 codes in, bfloat16 numbers out.

Weights are the row operand of wgmma, which is read from registers: a lane loads two neighbouring words at once and
holds the same two channels of every *plane*. Plane ``p`` of a step of 128 channels is channels ``32 p .. 32 p + 31``: one
scale. A word holds one channel of four planes (FP4) or of two (FP8), placed so that a shift and a mask make each a
bfloat16 number that is wrong by a power of two; the factor that corrects it carries the scale too. Nothing moves between
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
TILE_WORDS = tl.constexpr(64 * 32)
"""Words of a packed tile: one for each row and channel of a plane. FP8 weights have two tiles for each step."""

_FP4_PLANES = tl.constexpr(
    """{
    .reg .b32 a, b;
    and.b32 a, $4, 0x81C081C0;  mul.rn.bf16x2 $0, a, $5;
    shl.b32 a, $4, 3;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 $1, a, $6;
    shl.b32 a, $4, 6;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 $2, a, $7;
    shl.b32 a, $4, 1;  and.b32 a, a, 0x80008000;
    shr.b32 b, $4, 5;  lop3.b32 a, b, 0x01000100, a, 0xEA;
    shr.b32 b, $4, 4;  lop3.b32 a, b, 0x00C000C0, a, 0xEA;  mul.rn.bf16x2 $3, a, $8;
    }"""
)
"""Two words -> for each plane two numbers: sign to bit 15, exponent and mantissa to bits 8..6, times the plane's factor."""

_FP8_PLANES = tl.constexpr(
    """{
    .reg .b32 a, b;
    shl.b32 a, $2, 4;  and.b32 a, a, 0x07F007F0;
    shl.b32 b, $2, 8;  lop3.b32 a, b, 0x80008000, a, 0xEA;  mul.rn.bf16x2 $0, a, $3;
    shr.b32 a, $2, 4;  and.b32 a, a, 0x07F007F0;
    lop3.b32 a, $2, 0x80008000, a, 0xEA;  mul.rn.bf16x2 $1, a, $4;
    }"""
)
"""As ``_FP4_PLANES`` for two planes: sign to bit 15, exponent and mantissa to bits 10..4."""


@triton.jit
def weight_step(words_ptrs, scales_ptrs, FORMAT: tl.constexpr):
    """The numbers of one step of some rows, ``[rows, 128]`` bf16.

    Args:
        words_ptrs: ``[rows, 32]`` addresses of the step's (first) words.
        scales_ptrs: ``[rows]`` addresses of the step's factors: the exponent field of plane ``p`` in byte ``p``.
        FORMAT: ``"mxfp4"`` or ``"fp8_block32"``.
    """
    words = tl.load(words_ptrs)
    scales = tl.load(scales_ptrs)
    if FORMAT == "mxfp4":
        p0, p1, p2, p3 = _fp4_planes(words, scales)
    else:
        p0, p1 = _fp8_planes(words, scales)
        p2, p3 = _fp8_planes(tl.load(words_ptrs + TILE_WORDS), scales >> 16)
    planes = tl.join(tl.join(p0, p1), tl.join(p2, p3))
    return tl.reshape(tl.permute(planes, (0, 3, 2, 1)), (words.shape[0], STEP))


@triton.jit
def product(weights, x, total):
    """``total + weights @ x`` of bfloat16 operands, summed in float32."""
    if INTERPRETED:
        return tl.dot(weights.to(tl.float32), x.to(tl.float32), total)
    return tl.dot(weights, x, total)


@triton.jit
def _fp4_planes(words, scales):
    if INTERPRETED:
        wide = words.to(tl.int32)
        last = ((wide << 1) & 0x8000) | ((wide >> 5) & 0x0100) | ((wide >> 4) & 0x00C0)
        return (
            _scaled(wide & 0x81C0, scales),
            _scaled((wide << 3) & 0x81C0, scales >> 8),
            _scaled((wide << 6) & 0x81C0, scales >> 16),
            _scaled(last, scales >> 24),
        )
    return tl.inline_asm_elementwise(
        _FP4_PLANES,
        "=&r,=&r,=&r,=&r,r,r,r,r,r",
        [words, _factor(scales, 0), _factor(scales, 1), _factor(scales, 2), _factor(scales, 3)],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _fp8_planes(words, scales):
    if INTERPRETED:
        wide = words.to(tl.int32)
        low = ((wide << 8) & 0x8000) | ((wide << 4) & 0x07F0)
        high = (wide & 0x8000) | ((wide >> 4) & 0x07F0)
        return _scaled(low, scales), _scaled(high, scales >> 8)
    return tl.inline_asm_elementwise(
        _FP8_PLANES,
        "=&r,=&r,r,r,r",
        [words, _factor(scales, 0), _factor(scales, 1)],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _factor(scales, PLANE: tl.constexpr):
    """The power of two of one plane as a column of bfloat16 numbers, made from its exponent field."""
    SHIFT: tl.constexpr = 8 * PLANE - 7
    bits = scales << -SHIFT if SHIFT < 0 else scales >> SHIFT
    return tl.expand_dims((bits & 0x7F80).to(tl.int16).to(tl.bfloat16, bitcast=True), 1)


@triton.jit
def _scaled(bits, scales):
    """Bit patterns of bfloat16 numbers times a power of two; in float32, the interpreter has no bfloat16 arithmetic."""
    numbers = (bits << 16).to(tl.float32, bitcast=True)
    factors = ((scales & 0xFF) << 23).to(tl.float32, bitcast=True)
    return (numbers * tl.expand_dims(factors, 1)).to(tl.bfloat16)
