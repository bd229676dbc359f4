"""``linear`` over DeepGEMM: MXFP8 rows times FP8 weights.

Dense weights stay with the Triton kernels. So do dense rows, which only arithmetic other than the released one has:
the weight is then decoded at every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.declare import Use
from deepinfer_core.ops.limits import Site, attribute_in, multiple_of
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.quantize.rounding import dequantize_values
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.limits import group_width_multiple_of
from deepinfer_cuda.ops.sm100.layouts import SCALED_CHANNELS, block_scales_of_rows, pack_scales
from deepinfer_cuda.ops.sm100.libraries import DEEP_GEMM_LIMITS, NOTE, Library, deep_gemm, triton_part

_RECIPE = (1, 1, 32)
"""Rows and channels that share a scale: one row of either operand, 32 channels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fp8Weight:
    """An FP8 weight for DeepGEMM.

    Attributes:
        stored: The weight as it was: ``[rows, width]``, a scale for each 32x32 block.
        scales: Its scales repeated for each row and packed: ``[rows, width / 128]`` int32, or
            ``[groups, rows / groups, width / 128]`` for a grouped map.
    """

    stored: QuantTensor
    scales: Tensor


def pack_linear(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Weights of ``linear.linear``; dense ones as the Triton kernels take them.

    Raises:
        UnsupportedByBackend: The width of an FP8 weight is not a multiple of 128.
    """
    del site
    return {name: _pack(name, weight) for name, weight in weights.items()}


def pack_grouped_linear(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Weights of ``linear.grouped_linear``; see :func:`pack_linear`.

    Raises:
        UnsupportedByBackend: An FP8 weight's width is not a multiple of 128, or the rows of a group are not one of 32.
    """
    return {name: _pack(name, weight, groups=site.attributes["groups"]) for name, weight in weights.items()}


def _pack(name: str, weight: Tensor | QuantTensor, groups: int | None = None) -> Tensor | Packed:
    """A weight for one map, or for the maps of all groups stacked along the rows."""
    if not isinstance(weight, QuantTensor):
        return weight.contiguous()
    rows, width = weight.shape
    unit = weight.spec.rows * (groups or 1)
    if width % SCALED_CHANNELS or rows % unit:
        allowed = f"multiples of {SCALED_CHANNELS} channels and of {unit} rows"
        raise UnsupportedByBackend("cuda", (f"deep_gemm: {name} is [{rows}, {width}], but needs {allowed}",))
    scale = weight.scale if groups is None else weight.scale.unflatten(0, (groups, -1))
    payload = Fp8Weight(
        stored=QuantTensor(weight.data.contiguous(), weight.scale, weight.format),
        scales=pack_scales(block_scales_of_rows(scale)),
    )
    return Packed(payload, (rows, width))


def run_linear(
    x: Tensor | QuantTensor,
    weight: Tensor | Packed,
    *,
    out: str,
    library: Library = deep_gemm,
    use: Use = triton_part,
) -> Tensor:
    """``linear.linear``.

    Args:
        x: Rows.
        weight: From :func:`pack_linear`.
        out: ``bf16`` or ``f32``.
        library: Gives DeepGEMM.
        use: Gives the steps that DeepGEMM does not cover.
    """
    if not (isinstance(x, QuantTensor) and isinstance(weight, Packed)):
        return use(linear)(x, _dense(weight), out=out)
    payload: Fp8Weight = weight.payload
    result = torch.empty((x.shape[0], weight.shape[0]), dtype=TORCH_DTYPES[out], device=x.data.device)
    if len(result):
        rows = (x.data.contiguous(), pack_scales(x.scale))
        library().fp8_fp4_gemm_nt(rows, (payload.stored.data, payload.scales), result, recipe=_RECIPE)
    return result


def run_grouped_linear(
    x: Tensor | QuantTensor,
    weight: Tensor | Packed,
    *,
    groups: int,
    out: str,
    library: Library = deep_gemm,
    use: Use = triton_part,
) -> Tensor:
    """``linear.grouped_linear``; arguments as in :func:`run_linear`."""
    if not (isinstance(x, QuantTensor) and isinstance(weight, Packed)):
        return use(grouped_linear)(x, _dense(weight), groups=groups, out=out)
    payload: Fp8Weight = weight.payload
    maps = payload.stored.data.unflatten(0, (groups, -1))
    result = torch.empty((x.shape[0], groups, maps.shape[1]), dtype=TORCH_DTYPES[out], device=maps.device)
    if len(result):
        data = x.data.contiguous().unflatten(1, (groups, -1))
        # DeepGEMM turns rows and groups round before it looks at the scales, so they are packed the other way round.
        scales = pack_scales(x.scale.unflatten(1, (groups, -1)).transpose(0, 1)).transpose(0, 1)
        library().fp8_einsum("bhr,hdr->bhd", (data, scales), (maps, payload.scales), result, recipe=_RECIPE)
    return result.flatten(1)


def _dense(weight: Tensor | Packed) -> Tensor:
    """A weight without scales; FP8 values are exact in bf16."""
    return dequantize_values(weight.payload.stored, torch.bfloat16) if isinstance(weight, Packed) else weight


_LIMITS = (*DEEP_GEMM_LIMITS, attribute_in("out", "bf16", "f32"))

IMPLEMENTATIONS = {
    linear: (Implementation(run_linear, (*_LIMITS, multiple_of("I", SCALED_CHANNELS)), pack_linear, note=NOTE),),
    grouped_linear: (
        Implementation(
            run_grouped_linear,
            (*_LIMITS, group_width_multiple_of(SCALED_CHANNELS)),
            pack_grouped_linear,
            note=NOTE,
        ),
    ),
}
