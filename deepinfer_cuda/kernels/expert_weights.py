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

FP4_PLANES = (
    "{ .reg .b32 a;  and.b32 a, $2, 0x81C081C0;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a; }",
    """{
    .reg .b32 a;
    shf.r.wrap.b32 a, $2, $2, 4;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a;
    }""",
    "{ .reg .b32 a;  shl.b32 a, $2, 6;  and.b32 a, a, 0x81C081C0;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a; }",
    """{
    .reg .b32 a, b;
    shl.b32 a, $2, 2;  and.b32 a, a, 0x80C080C0;  shr.b32 b, $2, 6;
    lop3.b32 a, b, 0x01000100, a, 0xEA;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a;
    }""",
)
"""A word -> two numbers of each plane: sign to bit 15, exponent and mantissa to bits 8..6, times the plane's factor.

Each bit of a word belongs to one code; a search found no way to divide them that takes fewer instructions."""

FP8_PLANES = (
    """{
    .reg .b32 a, b;
    shl.b32 a, $2, 4;  and.b32 a, a, 0x07F007F0;  shl.b32 b, $2, 8;
    lop3.b32 a, b, 0x80008000, a, 0xEA;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a;
    }""",
    """{
    .reg .b32 a;
    shr.b32 a, $2, 4;  and.b32 a, a, 0x07F007F0;
    lop3.b32 a, $2, 0x80008000, a, 0xEA;  mul.rn.bf16x2 a, a, $3;  mov.b32 {$0, $1}, a;
    }""",
)
"""As ``FP4_PLANES`` for the two planes of a word of FP8 codes: sign to bit 15, exponent and mantissa to bits 10..4."""

_FP4_0, _FP4_1, _FP4_2, _FP4_3 = (tl.constexpr(text) for text in FP4_PLANES)
_FP8_0, _FP8_1 = (tl.constexpr(text) for text in FP8_PLANES)

FACTOR = tl.constexpr("{ prmt.b32 $0, $1, 0, $2;  shl.b32 $0, $0, 7; }")
"""An exponent field -> its power of two as a bfloat16 number, twice."""


@triton.jit
def step_words(words_ptrs, scales_ptrs, FORMAT: tl.constexpr):
    """What one step of some rows is made of: words ``[rows, 16]`` of the first planes, of the last, and factors.

    Args:
        words_ptrs: ``[rows, 16]`` addresses of the step's (first) words.
        scales_ptrs: ``[rows]`` addresses of the step's factors: the exponent field of plane ``p`` in byte ``p``.
        FORMAT: ``"mxfp4"``, of which a word has all four planes, or ``"fp8_block32"``.
    """
    first = tl.load(words_ptrs)
    last = first
    if FORMAT == "fp8_block32":
        last = tl.load(words_ptrs + TILE_WORDS)
    return first, last, tl.expand_dims(tl.load(scales_ptrs), 1)


@triton.jit
def weight_part(first, last, scales, FORMAT: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr):
    """The numbers of part ``PART`` of ``PARTS`` (1, 2 or 4) of a step, ``[rows, 128 / PARTS]`` bf16."""
    ROWS: tl.constexpr = first.shape[0]
    PLANE: tl.constexpr = PART * (4 // PARTS)
    p0 = _plane(first, last, scales, FORMAT, PLANE)
    if PARTS == 4:
        numbers = tl.reshape(p0, (ROWS, STEP // 4))
    elif PARTS == 2:
        p1 = _plane(first, last, scales, FORMAT, PLANE + 1)
        numbers = tl.reshape(tl.permute(tl.join(p0, p1), (0, 3, 1, 2)), (ROWS, STEP // 2))
    else:
        p1 = _plane(first, last, scales, FORMAT, PLANE + 1)
        p2 = _plane(first, last, scales, FORMAT, PLANE + 2)
        p3 = _plane(first, last, scales, FORMAT, PLANE + 3)
        planes = tl.join(tl.join(p0, p1), tl.join(p2, p3))
        numbers = tl.reshape(tl.permute(planes, (0, 4, 3, 1, 2)), (ROWS, STEP))
    return numbers


@triton.jit
def channels(x_ptrs, column, left, WHOLE: tl.constexpr):
    """Channels of rows, ``[channels, rows]``; where these may end among them (not ``WHOLE``) zeros from ``left`` on."""
    return tl.load(x_ptrs) if WHOLE else tl.load(x_ptrs, mask=column < left, other=0.0)


@triton.jit
def product(weights, x, total):
    """``total + weights @ x`` of bfloat16 operands, summed in float32."""
    if INTERPRETED:  # in float64, where the order in which NumPy sums, which is not that of a row alone, does not show
        return total + tl.dot(weights.to(tl.float64), x.to(tl.float64)).to(tl.float32)
    return tl.dot(weights, x, total)


@triton.jit
def _plane(first, last, scales, FORMAT: tl.constexpr, PLANE: tl.constexpr):
    """Numbers of one plane, ``[rows, 16, 2]``."""
    if FORMAT == "mxfp4":
        numbers = _fp4_plane(first, scales, PLANE)
    elif PLANE < 2:
        numbers = _fp8_plane(first, scales, PLANE)
    else:
        numbers = _fp8_plane(last, scales, PLANE)
    return numbers


@triton.jit
def _fp4_plane(words, scales, PLANE: tl.constexpr):
    """A plane as the interpreter computes it, and the instructions that do the same."""
    bits = words.to(tl.uint32, bitcast=True)
    if PLANE == 0:
        INSTRUCTIONS: tl.constexpr = _FP4_0
        moved = bits & 0x81C081C0
    elif PLANE == 1:
        INSTRUCTIONS: tl.constexpr = _FP4_1
        moved = ((bits >> 4) | (bits << 28)) & 0x81C081C0
    elif PLANE == 2:
        INSTRUCTIONS: tl.constexpr = _FP4_2
        moved = (bits << 6) & 0x81C081C0
    else:
        INSTRUCTIONS: tl.constexpr = _FP4_3
        moved = ((bits << 2) & 0x80C080C0) | ((bits >> 6) & 0x01000100)
    return _decoded(words, moved, scales, INSTRUCTIONS, PLANE)


@triton.jit
def _fp8_plane(words, scales, PLANE: tl.constexpr):
    """As :func:`_fp4_plane`."""
    bits = words.to(tl.uint32, bitcast=True)
    if PLANE % 2 == 0:
        INSTRUCTIONS: tl.constexpr = _FP8_0
        moved = ((bits << 8) & 0x80008000) | ((bits << 4) & 0x07F007F0)
    else:
        INSTRUCTIONS: tl.constexpr = _FP8_1
        moved = (bits & 0x80008000) | ((bits >> 4) & 0x07F007F0)
    return _decoded(words, moved, scales, INSTRUCTIONS, PLANE)


@triton.jit
def _decoded(words, moved, scales, INSTRUCTIONS: tl.constexpr, PLANE: tl.constexpr):
    """Numbers of one plane; ``moved`` are the bits where the instructions put them, for the interpreter."""
    if INTERPRETED:
        numbers = _pairs(moved, scales >> (8 * PLANE))
    else:
        even, odd = tl.inline_asm_elementwise(
            INSTRUCTIONS,
            "=h,=h,r,r",
            [words, _factor(scales, PLANE)],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )
        numbers = tl.join(even, odd)
    return numbers


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
