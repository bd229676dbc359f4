"""Codes of quantised formats to numbers and back, by bits and small tables (spec dependencies section 9)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from deepinfer_core.dtypes import Format
from deepinfer_core.ops.quantize.rounding import e2m1_values, power_of_two, quantize_rows, unpack_nibbles
from deepinfer_core.reference.rounding import GRIDS, integer, scaled_rows

_HALF_FACTOR = 256.0
"""An e4m3 code moved into the bits of a float16 reads as its value over 2^8, subnormals included."""


def decode(data: Tensor, scales: Tensor, spec: Format, into: Tensor | None = None) -> Tensor:
    """Float32 values of rows whose scales do not span rows.

    Args:
        data: Codes ``[..., bytes]`` uint8.
        scales: ``[..., groups]`` uint8.
        spec: Their format.
        into: Where the values go, if not into a new tensor.
    """
    values = _e4m3(data) if spec.element == "e4m3" else _e2m1(data)
    factors = _factors(spec).index_select(0, scales.reshape(-1).int()).view(*scales.shape, 1)
    result = values if into is None else into
    shape = (*scales.shape, spec.group)
    torch.mul(values.view(shape), factors, out=result.view(shape))
    return result


def encode(x: Tensor, spec: Format) -> tuple[Tensor, Tensor]:
    """Codes ``[..., bytes]`` and scale bytes ``[..., groups]`` of float32 rows."""
    if spec.name == "mxfp8":
        scaled, scales = scaled_rows(x, GRIDS[spec.name])
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scales
    quantized = quantize_rows(x, spec)
    return quantized.data, quantized.scale


def _e4m3(data: Tensor) -> Tensor:
    """Values over :data:`_HALF_FACTOR`; NaN codes read as 480, which the scale of such a group makes infinite."""
    bits = data.view(torch.int8).short().bitwise_left_shift_(integer(7)).bitwise_and_(integer(~(1 << 14)))
    return bits.view(torch.float16).float()


def _e2m1(data: Tensor) -> Tensor:
    """One look-up for the two codes of a byte."""
    pairs = _e2m1_pairs().index_select(0, data.reshape(-1).int())
    return pairs.view(torch.float32).view(*data.shape[:-1], 2 * data.shape[-1])


@lru_cache(maxsize=8)
def scale_factors(spec: Format) -> Tensor:
    """Scale byte -> the scale, float32."""
    codes = torch.arange(256, dtype=torch.uint8)
    return power_of_two(codes) if spec.scale == "ue8m0" else codes.view(torch.float8_e4m3fn).float()


@lru_cache(maxsize=8)
def _factors(spec: Format) -> Tensor:
    """Scale byte -> factor of the values above."""
    factors = scale_factors(spec)
    return factors * _HALF_FACTOR if spec.element == "e4m3" else factors


@lru_cache(maxsize=1)
def _e2m1_pairs() -> Tensor:
    """Byte -> bits of two float32 values."""
    codes = unpack_nibbles(torch.arange(256, dtype=torch.uint8).unsqueeze(1))
    return e2m1_values(codes).view(torch.int64).flatten()
