"""Expert weights in the tiles that ``deepinfer_cuda.kernels.expert_weights`` reads.

A tile is 64 rows of 16 words of 32 bits. FP4: a word holds two neighbouring channels of each of the four planes of 32
in a step of 128 channels. FP8: of two of them, two tiles for each step. Rows and channels that are missing are zero.
FP4 weights take the bytes that they have in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import power_of_two, unpack_nibbles
from deepinfer_core.tensor import Packed, QuantTensor

_ROWS, _STEP, _PLANE = 64, 128, 32
_TILES_PER_STEP = {"mxfp4": 1, "fp8_block32": 2}
_EXPONENT_SHIFT = {"mxfp4": 126, "fp8_block32": 120}
"""A code's bits read as bfloat16 are too small by 2^126 (e2m1) or 2^120 (e4m3): the exponent field of the factor that
corrects this and carries the scale is the scale's byte plus this number."""
_LARGEST_FIELD = 254
_FP4_BITS = ((6, 7, 8, 15), (10, 11, 12, 19), (0, 1, 2, 9), (4, 5, 14, 13))
_FP8_BITS = (tuple(range(8)), tuple(range(8, 16)))
"""Where a word keeps the codes of each plane; the kernel undoes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """One map of every expert (of one, for the shared expert) as kernels take it.

    Attributes:
        words: ``[experts, row tiles, steps, tiles per step, 64, 16]`` int32.
        scales: ``[experts, row tiles, steps, 64]`` int32: four exponent fields, that of the first plane lowest.
        factors: ``[experts]`` float32: what results are multiplied by; 1 unless scales are above what a field holds.
        rows: Result channels of one matrix; a map of two (gate and up) has its tiles one after the other.
        width: Channels that are summed over.
    """

    words: Tensor
    scales: Tensor
    factors: Tensor
    rows: int
    width: int


def empty_weights(
    format: str, experts: int, matrices: int, rows: int, width: int, device: torch.device
) -> ExpertWeights:
    """Weights without contents.

    Args:
        format: ``mxfp4`` or ``fp8_block32``.
        experts: Experts.
        matrices: 2 for gate and up, else 1.
        rows: Rows of one matrix.
        width: Channels that are summed over.
        device: Where they lie.
    """
    tiles, steps = matrices * -(-rows // _ROWS), -(-width // _STEP)
    words = (experts, tiles, steps, _TILES_PER_STEP[format], _ROWS, _PLANE // 2)
    return ExpertWeights(
        words=torch.empty(words, dtype=torch.int32, device=device),
        scales=torch.empty((experts, tiles, steps, _ROWS), dtype=torch.int32, device=device),
        factors=torch.empty(experts, dtype=torch.float32, device=device),
        rows=rows,
        width=width,
    )


def pack_experts(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Every map of ``moe.expert_mlp`` or ``moe.expert_layer``.

    Raises:
        UnsupportedByBackend: A weight is not stored as the released checkpoints store it.
    """
    return {name: _packed(name, weight) for name, weight in weights.items()}


def _packed(name: str, weight: Tensor | QuantTensor) -> Packed:
    format = "fp8_block32" if name.startswith("shared") else "mxfp4"
    if not isinstance(weight, QuantTensor) or weight.format != format:
        found = weight.format if isinstance(weight, QuantTensor) else str(weight.dtype)
        problem = f"experts: {name} is {found}, but only {format} has a kernel; quantise the checkpoint"
        raise UnsupportedByBackend("cuda", (problem,))
    shape = tuple(weight.shape) if len(weight.shape) == 3 else (1, *weight.shape)
    matrices = 2 if name.endswith("gate_up") else 1
    packed = empty_weights(format, shape[0], matrices, shape[1] // matrices, shape[2], weight.data.device)
    data, scale = weight.data.view(torch.uint8), weight.scale
    data, scale = (data, scale) if data.dim() == 3 else (data.unsqueeze(0), scale.unsqueeze(0))
    excess = _excess(scale, format)
    packed.factors.copy_(power_of_two(127 + excess))
    fields = _fp4_fields if format == "mxfp4" else _fp8_fields
    words = _fp4_words if format == "mxfp4" else _fp8_words
    for expert in range(shape[0]):  # one at a time: unpacked codes take many times their bytes
        packed.words[expert].copy_(words(data[expert], matrices))
        packed.scales[expert].copy_(fields(scale[expert], excess[expert], matrices))
    return Packed(packed, tuple(weight.shape))


def _excess(scale: Tensor, format: str) -> Tensor:
    """Powers of two by which an expert's scales are too large for a field (int32, nearly always 0)."""
    largest = scale.flatten(1).amax(1).to(torch.int32)
    return (largest + _EXPONENT_SHIFT[format] - _LARGEST_FIELD).clamp_min(0)


def _fp4_words(data: Tensor, matrices: int) -> Tensor:
    return _words(_planes(unpack_nibbles(data), matrices), _FP4_BITS).unsqueeze(2)


def _fp8_words(data: Tensor, matrices: int) -> Tensor:
    planes = _planes(data, matrices).unflatten(-2, (2, 2))
    return _words(planes.movedim(-3, 2), _FP8_BITS)


def _planes(codes: Tensor, matrices: int) -> Tensor:
    """Codes ``[rows, width]`` as ``[row tiles, steps, 64, planes, 32]``."""
    return _tiles(codes, matrices, _STEP).unflatten(-1, (_STEP // _PLANE, _PLANE))


def _words(planes: Tensor, bits: tuple[tuple[int, ...], ...]) -> Tensor:
    """Words of codes ``[..., planes, 32]``: each takes one pair of neighbouring channels of every plane.

    Args:
        planes: Codes.
        bits: For each plane where a word keeps the bits of an even channel's code, lowest first; those of an odd
            channel are 16 places further on, round the end.
    """
    pairs = planes.unflatten(-1, (_PLANE // 2, 2)).to(torch.int32)
    words = torch.zeros_like(pairs[..., 0, :, 0])
    for plane, places in enumerate(bits):
        for odd in (0, 1):
            for number, place in enumerate(places):
                words |= ((pairs[..., plane, :, odd] >> number) & 1) << ((place + 16 * odd) % 32)
    return words


def _fp4_fields(scale: Tensor, excess: Tensor, matrices: int) -> Tensor:
    return _fields(scale, "mxfp4", excess, matrices)


def _fp8_fields(scale: Tensor, excess: Tensor, matrices: int) -> Tensor:
    return _fields(scale.repeat_interleave(32, 0), "fp8_block32", excess, matrices)


def _fields(scale: Tensor, format: str, excess: Tensor, matrices: int) -> Tensor:
    """Words of four exponent fields, ``[row tiles, steps, 64]`` int32."""
    field = (scale.to(torch.int32) - excess).clamp_min(0) + _EXPONENT_SHIFT[format]
    return _tiles(field.to(torch.uint8), matrices, _STEP // _PLANE).contiguous().view(torch.int32).squeeze(-1)


def _tiles(matrix: Tensor, matrices: int, step: int) -> Tensor:
    """``[matrices * rows, width]`` as ``[row tiles, steps, 64, step]``, missing rows and columns zero."""
    rows, width = matrix.shape[0] // matrices, matrix.shape[1]
    whole = pad(matrix.unflatten(0, (matrices, rows)), (0, -width % step, 0, -rows % _ROWS))
    return whole.flatten(0, 1).unflatten(0, (-1, _ROWS)).unflatten(-1, (-1, step)).movedim(1, 2)
