"""Weights of linear maps in the layout of the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.limits import Site
from deepinfer_core.tensor import Packed, QuantTensor

_ROWS, _CHANNELS = 256, 128
"""Padded with zeros to multiples of these (no released weight needs it), no tile reaches beyond a packed weight."""
_FACTOR_SHIFT = 96
"""Factors are 2^96 times the scale: 2^120 for moving the bits, less the 2^24 of ``WEIGHT_UNIT``."""
_LARGEST_SCALE = 254 - _FACTOR_SHIFT
"""Byte of the largest scale, 2^31, whose factor is a float."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fp8Weight:
    """An FP8 weight for ``kernels/fp8_linear.py``.

    Attributes:
        data: ``[groups * padded out / 2, 2 * padded width]`` e4m3: rows ``r`` and ``r + 8`` of 16 interleaved by pairs
            of channels.
        factor: ``[groups * padded out / 32, padded width / 32]`` float32.
        groups: Independent maps.
        num_out: Rows of one map.
        width: Channels of one map.
    """

    data: Tensor
    factor: Tensor
    groups: int
    num_out: int
    width: int

    @property
    def padded_width(self) -> int:
        """Channels as they are stored."""
        return self.data.shape[1] // 2


def pack_linear(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Weights of a linear map (of all its groups): FP8 is rearranged, dense weights stay as they are."""
    groups = site.attributes.get("groups", 1)
    return {
        name: pack_fp8(weight, groups) if isinstance(weight, QuantTensor) else weight.contiguous()
        for name, weight in weights.items()
    }


def pack_fp8(weight: QuantTensor, groups: int) -> Packed:
    """Rearrange an FP8 weight so that what a thread of the matrix unit needs lies side by side.

    Args:
        weight: ``[groups * out, width]`` in format ``fp8_block32``.
        groups: Independent maps, stacked along the rows.

    Raises:
        UnsupportedByBackend: A scale is beyond 2^31.
    """
    largest = int(weight.scale.max())
    if largest > _LARGEST_SCALE:
        problem = (
            f"linear: an FP8 weight has a scale of 2^{largest - 127}, at most 2^31 is supported; check the checkpoint"
        )
        raise UnsupportedByBackend("cuda", (problem,))
    rows, width = weight.shape
    num_out = rows // groups
    data = _padded(weight.data.view(torch.uint8).view(groups, num_out, width), _ROWS, _CHANNELS)
    pairs = data.reshape(-1, 2, 8, data.shape[2] // 8, 4, 2).permute(0, 2, 3, 4, 1, 5)
    scale = _padded(weight.scale.view(groups, num_out // 32, width // 32), _ROWS // 32, _CHANNELS // 32)
    exponent = scale.flatten(0, 1).to(torch.int32) + _FACTOR_SHIFT
    payload = Fp8Weight(
        data=pairs.reshape(-1, 2 * data.shape[2]).view(torch.float8_e4m3fn),
        factor=(exponent << 23).view(torch.float32),
        groups=groups,
        num_out=num_out,
        width=width,
    )
    return Packed(payload, (rows, width))


def _padded(matrices: Tensor, row_unit: int, column_unit: int) -> Tensor:
    """``[groups, rows, columns]`` with zeros up to multiples of the units."""
    _, rows, columns = matrices.shape
    return pad(matrices, (0, -columns % column_unit, 0, -rows % row_unit))
