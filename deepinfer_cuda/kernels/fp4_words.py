"""FP4 rows as operands of a matrix product: 32-bit words of eight codes in, bfloat16 numbers out, in registers.

A wgmma operand gives each quad of lanes one row. Here lane ``t`` of the quad reads group ``t`` of 32 channels, which
has one scale, as four words ``w``; its eight codes ``j`` become the numbers of channels ``32 t + 8 w + j``. The product
runs over channels in the order ``[j, w / 2, t, w % 2]``, in which nothing has to move between lanes; both operands
come from this file, so the order never shows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED, e2m1_to_float, power_of_two

CHANNELS = tl.constexpr(128)
"""Channels of an operand row; narrower rows are padded with zeros."""

_UNPACK = tl.constexpr(
    """{
    .reg .b32 low, high, low_8, high_8, code;
    prmt.b32 low, $8, $9, 0x5410;
    prmt.b32 high, $8, $9, 0x7632;
    and.b32 code, low, 0x000F000F; mul.lo.u32 code, code, 0x1040; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $0, code, $10;
    and.b32 code, low, 0x00F000F0; mul.lo.u32 code, code, 0x0104; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $1, code, $10;
    shr.b32 low_8, low, 8;
    and.b32 code, low_8, 0x000F000F; mul.lo.u32 code, code, 0x1040; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $2, code, $10;
    and.b32 code, low_8, 0x00F000F0; mul.lo.u32 code, code, 0x0104; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $3, code, $10;
    and.b32 code, high, 0x000F000F; mul.lo.u32 code, code, 0x1040; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $4, code, $10;
    and.b32 code, high, 0x00F000F0; mul.lo.u32 code, code, 0x0104; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $5, code, $10;
    shr.b32 high_8, high, 8;
    and.b32 code, high_8, 0x000F000F; mul.lo.u32 code, code, 0x1040; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $6, code, $10;
    and.b32 code, high_8, 0x00F000F0; mul.lo.u32 code, code, 0x0104; and.b32 code, code, 0x81C081C0;
    mul.rn.bf16x2 $7, code, $10;
    }"""
)
"""Two words of one row -> for each code number the pair of bfloat16 numbers.

One multiplication copies a code twice, so that its sign lies at bit 15 and its exponent and mantissa at bits 8..6: the
number times 2^-126. The factor does the rest.
"""


@triton.jit
def fp4_words_to_bf16(words, scale):
    """Values times 2^-32 of rows of FP4 words, ``[..., t, w]`` int32 -> ``[..., t, w, 8]`` bf16.

    The power keeps the factor within bfloat16. Exact for scales of 2^-100 to 2^33.

    Args:
        words: Eight codes each, first channel in the lowest bits.
        scale: ``ue8m0`` bytes of the groups, ``[..., t]`` in an integer type.
    """
    if INTERPRETED:
        values = e2m1_to_float(tl.expand_dims(words, -1) >> (4 * tl.arange(0, 8)))
        factor = tl.expand_dims(tl.expand_dims(power_of_two(scale), -1), -1)
        return (values * factor * 2.3283064365386963e-10).to(tl.bfloat16)
    field = tl.minimum(scale.to(tl.int32) + 94, 254) << 7
    factor = tl.broadcast_to(tl.expand_dims(field.to(tl.int16).to(tl.bfloat16, bitcast=True), -1), words.shape)
    n0, n1, n2, n3, n4, n5, n6, n7 = tl.inline_asm_elementwise(
        _UNPACK,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
        [words, factor],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )
    even = tl.join(tl.join(n0, n4), tl.join(n2, n6))
    odd = tl.join(tl.join(n1, n5), tl.join(n3, n7))
    codes = tl.join(even, odd)
    return tl.reshape(codes, codes.shape[:-3] + (8,))  # noqa: RUF005 - Triton knows no unpacking


@triton.jit
def group_bytes(pointer, group, NUM_GROUPS: tl.constexpr, mask):
    """Scale bytes of the groups of rows, 0 where a row has no such group.

    Args:
        pointer: Address of each row's scales ``[..., 1]``, aligned to four bytes when there are four.
        group: ``0 .. 3`` along the last axis.
        NUM_GROUPS: Groups of a row.
        mask: Rows that are read, ``[..., 1]``.
    """
    if NUM_GROUPS == 4:
        word = tl.load(pointer.to(tl.pointer_type(tl.int32)), mask=mask, other=0)
        return (word >> (8 * group)) & 0xFF
    return tl.load(pointer + group, mask=mask & (group < NUM_GROUPS), other=0).to(tl.int32)
