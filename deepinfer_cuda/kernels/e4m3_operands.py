"""FP8 numbers as operands of a bfloat16 matrix product: decoded in registers, exactly.

An e4m3 number has four significant bits, so times a power of two it is a bfloat16 number, and products of such numbers
are exact in the matrix unit's float32 sums (spec model/03 section 3).
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED, e4m3_to_float

PADDED_ROWS = tl.constexpr(256)
"""Rows of a packed weight are a multiple of this."""
WEIGHT_UNIT = tl.constexpr(16777216.0)
"""2^24: weights are decoded as multiples of it, so that the factor of every sensible scale is a bfloat16 number."""

_MOVE_BITS = tl.constexpr(
    """{
    .reg .b32 low, high;
    prmt.b32 low, $2, 0, 0x9180;
    prmt.b32 high, $2, 0, 0xB3A2;
    shl.b32 low, low, 4;
    shl.b32 high, high, 4;
    and.b32 low, low, 0x87F087F0;
    and.b32 high, high, 0x87F087F0;
    mul.rn.bf16x2 $0, low, $3;
    mul.rn.bf16x2 $1, high, $4;
    }"""
)
"""Four e4m3 numbers in a register -> four bfloat16 numbers in two: sign to bit 15, exponent and mantissa to bits 10..4,
which is the number times 2^-120 (subnormal numbers too), then one multiplication by the factor."""


@triton.jit
def e4m3_to_bf16(data, factor):
    """``data * 2^-120 * factor`` in bfloat16, exact.

    Args:
        data: ``float8_e4m3fn``, four consecutive numbers of a thread at a time.
        factor: Powers of two in bfloat16, of the same shape.
    """
    if INTERPRETED:
        return (e4m3_to_float(data) * 7.52316384526264e-37 * factor.to(tl.float32)).to(tl.bfloat16)
    return tl.inline_asm_elementwise(
        _MOVE_BITS, "=&r,=&r,r,r,r", [data, factor], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def settled(total):
    """The sum itself, in a form that makes the loop wait for its matrix instructions before its next round.

    Left in flight across the loop's back edge, instructions whose left operand is in registers are run one by one by
    the assembler (its message C7515); closed in each round, they follow each other without a gap.
    """
    if INTERPRETED:
        return total
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [total], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def weight_tile(
    weight_ptr, factor_ptr, first_out, start, WIDTH: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr
):
    """A tile of a packed weight, ``[BLOCK_OUT, BLOCK_IN]`` bfloat16 in units of :data:`WEIGHT_UNIT`.

    The layout is that of :func:`deepinfer_cuda.ops.linear_weight.pack_fp8`: what a thread of the matrix unit needs of
    rows ``r`` and ``r + 8`` lies side by side, so nothing moves between threads and loads are wide.

    Args:
        weight_ptr: ``[out / 2, 2 WIDTH]`` e4m3.
        factor_ptr: ``[out / 32, WIDTH / 32]`` float32: the scales times 2^120, in units of :data:`WEIGHT_UNIT`.
        first_out: Multiple of 32.
        start: Multiple of 32.
        WIDTH: Padded channels of a row.
        BLOCK_OUT: Rows of the tile.
        BLOCK_IN: Channels of the tile.
    """
    pair = first_out // 2 + tl.arange(0, BLOCK_OUT // 2)
    column = 2 * start + tl.arange(0, 2 * BLOCK_IN)
    data = tl.load(weight_ptr + pair[:, None] * (2 * WIDTH) + column[None, :])
    block = (first_out + tl.arange(0, BLOCK_OUT)) // 32
    group = start // 32 + tl.arange(0, BLOCK_IN // 32)
    factor = tl.load(factor_ptr + block[:, None] * (WIDTH // 32) + group[None, :]).to(tl.bfloat16)
    data = data.reshape(BLOCK_OUT // 16, 8, BLOCK_IN // 8, 4, 2, 2).permute(0, 4, 1, 2, 3, 5)
    data = data.reshape(BLOCK_OUT, BLOCK_IN // 32, 32)
    factor = tl.broadcast_to(factor[:, :, None], (BLOCK_OUT, BLOCK_IN // 32, 32))
    return e4m3_to_bf16(data, factor).reshape(BLOCK_OUT, BLOCK_IN)
