"""Rounding to 8 and 4 bits: the scale rules and codes that every quantised format shares.

Rules of spec model/03 sections 1 and 5. Scales that are powers of two are found on the bits of the
float32 quotient, never through a logarithm; values are rounded to nearest, ties to even.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS, Format
from deepinfer_core.errors import InternalError
from deepinfer_core.ops.wide import wide
from deepinfer_core.tensor import QuantTensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
_E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_SMALLEST_MAXIMUM = {"mxfp8": 1e-4, "mxfp4": E2M1_MAX * 2.0**-126, "fp4_e4m3": E2M1_MAX * 2.0**-9}
"""Floor of a group's largest magnitude, so that a zero group has a valid scale."""


def power_of_two_exponent(quotient: Tensor) -> Tensor:
    """``ceil(log2(quotient))`` of positive float32 numbers, exact (int32)."""
    bits = quotient.view(torch.int32)
    return ((bits - 1) >> 23) + 1 - 127


def power_of_two(biased: Tensor) -> Tensor:
    """``2^(biased - 127)`` as float32, made from bits; 0 gives the subnormal 2^-127 (UE8M0 bytes)."""
    bits = biased.to(torch.int32)
    return torch.where(bits == 0, 1 << 22, bits << 23).view(torch.float32)


def to_e4m3(x: Tensor) -> Tensor:
    """Round to float8 e4m3, saturating at +-448 (casts of some torch releases make NaN instead)."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float32).to(torch.float8_e4m3fn)


def to_e2m1_codes(x: Tensor) -> Tensor:
    """Nearest 4-bit code (uint8 0..15), ties to the even code, saturating at +-6; the sign of zero is kept."""
    magnitude = x.abs()
    code = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for number, midpoint in enumerate(_E2M1_MIDPOINTS):
        # Code number + 1 is even when number is odd: then the midpoint itself belongs to the upper code.
        code += magnitude >= midpoint if number % 2 else magnitude > midpoint
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two codes to a byte along the last axis: even channel in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Inverse of :func:`pack_nibbles`."""
    return torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2)


def e2m1_values(codes: Tensor) -> Tensor:
    """4-bit codes -> float32: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and bit 3 is the sign.

    By arithmetic: a table would have to be brought to the device in each step.
    """
    wide_codes = codes.int()
    exponent, mantissa = (wide_codes >> 1) & 3, wide_codes & 1
    halves = torch.where(exponent == 0, mantissa, (2 + mantissa) << (exponent - 1).clamp_min(0))
    return halves.float() * torch.where((wide_codes & 8) != 0, -0.5, 0.5)


def quantize_rows(x: Tensor, spec: Format) -> QuantTensor:
    """Quantise the last axis group by group (formats whose scales do not span rows).

    The group maximum, its floor and the scale follow spec model/03: ``mxfp8`` and ``mxfp4`` have
    power-of-two scales rounded up; ``fp4_e4m3`` has ``e4m3(maximum / 6)`` and multiplies by the float32
    reciprocal of that scale.
    """
    if spec.rows != 1:
        raise InternalError(f"format {spec.name} has scales that span rows; quantise weights with quantize_blocks")
    groups = wide(x).unflatten(-1, (-1, spec.group))
    maximum = groups.abs().amax(-1).float().clamp_min(_SMALLEST_MAXIMUM[spec.name])
    largest = E4M3_MAX if spec.element == "e4m3" else E2M1_MAX
    if spec.scale == "ue8m0":
        exponent = power_of_two_exponent(maximum / largest)
        scale = (exponent + 127).to(torch.uint8)
        inverse = power_of_two(127 - exponent)
    else:
        rounded = to_e4m3(maximum * (1.0 / largest))
        scale, inverse = rounded.view(torch.uint8), 1.0 / rounded.float()
    scaled = (groups * inverse.unsqueeze(-1).to(groups.dtype)).flatten(-2)
    if spec.element == "e4m3":
        return QuantTensor(to_e4m3(scaled), scale, spec.name)
    return QuantTensor(pack_nibbles(to_e2m1_codes(scaled)), scale, spec.name)


def quantize_blocks(weight: Tensor) -> QuantTensor:
    """FP8 weight with one power-of-two scale per 32x32 block (sides are multiples of 32)."""
    spec = FORMATS["fp8_block32"]
    rows, width = weight.shape[0] // spec.rows, weight.shape[1] // spec.group
    blocks = wide(weight).reshape(rows, spec.rows, width, spec.group)
    maximum = blocks.abs().amax((1, 3)).float().clamp_min(_SMALLEST_MAXIMUM["mxfp8"])
    exponent = power_of_two_exponent(maximum / E4M3_MAX)
    inverse = power_of_two(127 - exponent)
    data = to_e4m3(blocks * inverse[:, None, :, None]).reshape(weight.shape)
    return QuantTensor(data, (exponent + 127).to(torch.uint8), spec.name)


def dequantize_values(q: QuantTensor, dtype: torch.dtype) -> Tensor:
    """The values of a quantised tensor in canonical storage; exact in bf16 and wider."""
    spec = q.spec
    if q.storage != "canonical":
        raise InternalError(f"storage {q.storage!r} is private to a backend; only its own ops read it")
    values = q.data.float() if spec.element == "e4m3" else e2m1_values(unpack_nibbles(q.data))
    scale = power_of_two(q.scale) if spec.scale == "ue8m0" else q.scale.view(torch.float8_e4m3fn).float()
    if spec.rows > 1:
        scale = scale.repeat_interleave(spec.rows, -2)[..., : values.shape[-2], :]
    scale = scale.repeat_interleave(spec.group, -1)[..., : values.shape[-1]]
    return (values * scale).to(dtype)


def dense(weight: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    """A weight as a dense tensor of ``dtype``, whichever way it is stored."""
    return dequantize_values(weight, dtype) if isinstance(weight, QuantTensor) else weight.to(dtype)
