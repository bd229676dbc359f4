"""Rows rounded to a quantised format and kept as numbers, which is how the CPU's own ops read them.

Codes and scales would be made only to be undone by the next linear map; here a row goes straight to the values
that it would have afterwards, in a few passes over float32 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deepinfer_core.tensor import QuantTensor

ROUNDED = "rounded"
"""Storage word of a ``QuantTensor`` whose ``data`` are the rounded values themselves; ``scale`` is empty."""

_SIGN_AND_EXPONENT = -(1 << 23)
_EXPONENT = 0x7F800000


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers of a format with power-of-two scales, as constants of float32 bit arithmetic.

    A number is rounded to nearest, ties to even, by adding ``1.5 * 2^k`` and taking it away again: float32
    keeps 23 bits below ``2^k``, so what lies below the wanted step is rounded off. ``k`` follows the number's
    own exponent, and its group's smallest normal exponent where the number is below that.

    Attributes:
        group: Channels that share a scale.
        floor: Least maximum of a group.
        to_scale: Added to the bits of a group's maximum, it makes the exponent that of the group's scale: raised
            exactly if the maximum is larger than the largest code at its own exponent.
        to_smallest: The same for the exponent of the smallest normal number of the group.
        to_shift: From an exponent field to the bits of ``1.5 * 2^k``.
    """

    group: int
    floor: float
    to_scale: int
    to_smallest: int
    to_shift: int

    @classmethod
    def of(cls, *, mantissa_bits: int, smallest_exponent: int, largest: float, exponent: int, floor: float) -> Grid:
        """The grid of a format whose largest code is ``largest * 2^exponent`` with ``1 <= largest < 2``."""
        carry = (1 << 23) - 1 - int((largest - 1.0) * 2**23)
        return cls(
            group=32,
            floor=floor,
            to_scale=carry - (exponent << 23),
            to_smallest=carry + ((smallest_exponent - exponent) << 23),
            to_shift=((23 - mantissa_bits) << 23) + (1 << 22),
        )


GRIDS = {
    "mxfp8": Grid.of(mantissa_bits=3, smallest_exponent=-6, largest=1.75, exponent=8, floor=1e-4),
    "mxfp4": Grid.of(mantissa_bits=1, smallest_exponent=0, largest=1.5, exponent=2, floor=6.0 * 2.0**-126),
}


def round_rows(x: Tensor, grid: Grid) -> Tensor:
    """The values that dense float32 rows have after quantising (spec model/03 sections 1 and 5).

    Exact for magnitudes below 2^100 but for the sign of zero: what rounds to zero becomes +0. NaN stays NaN.
    """
    groups = x.view(*x.shape[:-1], x.shape[-1] // grid.group, grid.group)
    exponent = groups.view(torch.int32).bitwise_and(integer(_EXPONENT))
    torch.maximum(exponent, _exponent_of_group(groups, grid.floor, grid.to_smallest), out=exponent)
    shift = exponent.add_(integer(grid.to_shift)).view(torch.float32)
    return (groups + shift).sub_(shift).view(x.shape)


def scaled_rows(x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Float32 rows over their scales, not yet rounded, and the scale bytes (ue8m0) ``[..., groups]``.

    The byte of a group with NaN makes every code that is not zero infinite.
    """
    groups = x.view(*x.shape[:-1], x.shape[-1] // grid.group, grid.group)
    scale = _exponent_of_group(groups, grid.floor, grid.to_scale)
    codes = (groups / scale.view(torch.float32)).view(x.shape)
    return codes, scale.bitwise_right_shift_(integer(23)).to(torch.uint8).squeeze(-1)


def _exponent_of_group(groups: Tensor, floor: float, carry: int) -> Tensor:
    """Exponent field ``[..., 1]`` (float32 bits) that the carry makes of each group's largest magnitude."""
    largest = torch.maximum(groups.abs().amax(-1, keepdim=True), constant(floor)).view(torch.int32)
    return largest.add_(integer(carry)).bitwise_and_(integer(_SIGN_AND_EXPONENT))


def rounded_rows(values: Tensor, format: str) -> QuantTensor:
    """Rounded values as the quantised rows that they stand for."""
    return QuantTensor(values, values[..., :0], format, ROUNDED)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)`` by the methods that cost half of it on small tensors."""
    if dtype == torch.float32:
        return x.float()
    return x.bfloat16() if dtype == torch.bfloat16 else x.to(dtype)


def through(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 numbers rounded to ``dtype`` and back: what a step leaves that stores its result in that type."""
    return x if dtype == x.dtype else cast(x, dtype).float()


@lru_cache(maxsize=256)
def constant(value: float) -> Tensor:
    """A float32 scalar as a tensor: with one, a call on few numbers costs half of what it does with a plain number."""
    return torch.tensor(value, dtype=torch.float32)


@lru_cache(maxsize=256)
def integer(value: int) -> Tensor:
    """The same for int32."""
    return torch.tensor(value, dtype=torch.int32)
