"""Cached rows inside kernels: where they lie, and their bytes as bfloat16 numbers, exact."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED, e2m1_to_float, e4m3_byte_to_float, power_of_two, rounded

_FROM_E4M3 = tl.constexpr("""{
.reg .b32 low, high, rest, bias;
mov.b32 bias, 0x7B807B80;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
shr.b32 rest, low, 4;
and.b32 rest, rest, 0x07F007F0;
lop3.b32 low, low, 0x80008000, rest, 0xEA;
mul.bf16x2 low, low, bias;
mul.bf16x2 $0, low, $3;
shr.b32 rest, high, 4;
and.b32 rest, rest, 0x07F007F0;
lop3.b32 high, high, 0x80008000, rest, 0xEA;
mul.bf16x2 high, high, bias;
mul.bf16x2 $1, high, $4;
}""")
"""Two pairs of bytes at a time: each byte goes to the upper half of a 16-bit lane, its exponent and mantissa to their
places in bfloat16, 2^120 mends the exponent (and makes subnormals normal). 0xEA is ``(a & b) | c``."""

_FROM_E2M1 = tl.constexpr("""{
.reg .b32 left, low, high, rest, bias;
mov.b32 bias, 0x7E807E80;
shl.b32 left, $4, 4;
prmt.b32 low, left, $4, 0x4000;
prmt.b32 high, left, $4, 0x5010;
shr.b32 rest, low, 6;
and.b32 rest, rest, 0x01C001C0;
lop3.b32 low, low, 0x80008000, rest, 0xEA;
mul.bf16x2 low, low, bias;
mul.bf16x2 $0, low, $5;
shr.b32 rest, high, 6;
and.b32 rest, rest, 0x01C001C0;
lop3.b32 high, high, 0x80008000, rest, 0xEA;
mul.bf16x2 high, high, bias;
mul.bf16x2 $1, high, $6;
prmt.b32 low, left, $4, 0x6020;
prmt.b32 high, left, $4, 0x7030;
shr.b32 rest, low, 6;
and.b32 rest, rest, 0x01C001C0;
lop3.b32 low, low, 0x80008000, rest, 0xEA;
mul.bf16x2 low, low, bias;
mul.bf16x2 $2, low, $7;
shr.b32 rest, high, 6;
and.b32 rest, rest, 0x01C001C0;
lop3.b32 high, high, 0x80008000, rest, 0xEA;
mul.bf16x2 high, high, bias;
mul.bf16x2 $3, high, $8;
}""")
"""Four bytes at a time: the two codes of a byte go to the top of two 16-bit lanes, 2^126 mends the exponent."""


@triton.jit
def record_offsets(slots, block_stride, ROWS: tl.constexpr, RECORD: tl.constexpr):
    """Byte offsets of flat slot numbers in a cache whose rows lie one after the other in each block."""
    safe = tl.maximum(slots, 0)
    return (safe // ROWS).to(tl.int64) * block_stride + safe % ROWS * RECORD


@triton.jit
def load_values(row_ptr, exists, FORMAT: tl.constexpr, CHANNELS: tl.constexpr):
    """Pairs of channels ``[rows, CHANNELS / 2]``, uint16 (e4m3) or uint8 (e2m1).

    ``row_ptr`` points to the first byte of each record; rows that do not exist are not read and give 0.
    """
    if FORMAT == "mxfp8":
        row_ptr = row_ptr.to(tl.pointer_type(tl.uint16))
    pair = tl.arange(0, CHANNELS // 2)
    return tl.load(row_ptr[:, None] + pair[None, :], mask=exists[:, None], other=0)


@triton.jit
def load_scales(row_ptr, exists, FORMAT: tl.constexpr, CHANNELS: tl.constexpr):
    """Scale bytes behind the values ``[rows, groups]``; arguments as of :func:`load_values`."""
    if FORMAT == "mxfp8":
        place = CHANNELS + tl.arange(0, CHANNELS // 32)
    else:
        place = CHANNELS // 2 + tl.arange(0, CHANNELS // 16)
    return tl.load(row_ptr[:, None] + place[None, :], mask=exists[:, None], other=0)


@triton.jit
def to_bfloat16(values, scales, FORMAT: tl.constexpr):
    """Numbers ``[rows, channels]`` (bfloat16) of loaded pairs and scale bytes."""
    if FORMAT == "mxfp8":
        scale = rounded(power_of_two(scales), tl.bfloat16)
    else:
        tl.static_assert(FORMAT == "fp4_e4m3")
        scale = rounded(e4m3_byte_to_float(scales), tl.bfloat16)
    rows: tl.constexpr = values.shape[0]
    pairs: tl.constexpr = values.shape[1]
    groups: tl.constexpr = scales.shape[1]
    if INTERPRETED:
        wide = _of_every_pair(scale.to(tl.float32), pairs // groups)
        if FORMAT == "mxfp8":
            low, high = e4m3_byte_to_float(values & 0xFF), e4m3_byte_to_float(values >> 8)
        else:
            low, high = e2m1_to_float(values & 0xF), e2m1_to_float(values >> 4)
        both = tl.join(rounded(low * wide, tl.bfloat16), rounded(high * wide, tl.bfloat16))
    else:
        bits = scale.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        twice = _of_every_pair(bits | (bits << 16), pairs // groups)
        if FORMAT == "mxfp8":
            words = tl.inline_asm_elementwise(
                _FROM_E4M3, "=&r,=&r,r,r,r", [values, twice], dtype=tl.int32, is_pure=True, pack=2
            )
        else:
            words = tl.inline_asm_elementwise(
                _FROM_E2M1, "=&r,=&r,=&r,=&r,r,r,r,r,r", [values, twice], dtype=tl.int32, is_pure=True, pack=4
            )
        low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
        both = tl.join(low, (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))
    return both.reshape(rows, 2 * pairs)


@triton.jit
def _of_every_pair(scale, PAIRS: tl.constexpr):
    """Numbers of groups ``[rows, groups]`` -> of pairs of channels, ``PAIRS`` in each group."""
    rows: tl.constexpr = scale.shape[0]
    groups: tl.constexpr = scale.shape[1]
    return tl.broadcast_to(scale[:, :, None], (rows, groups, PAIRS)).reshape(rows, groups * PAIRS)
