"""Packed expert weights, decoded by the instructions that the kernels contain, are the weights of the checkpoint.

The interpreter takes another path through ``expert_weights`` and no GPU is here: so the PTX text itself is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the wheel of triton is for Linux")

from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dequantize_values
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.kernels import expert_weights
from deepinfer_cuda.ops.expert_packing import ExpertWeights, pack_experts

_WORD = 0xFFFFFFFF


@pytest.mark.parametrize("largest_scale", [124, 140])
def test_fp4_words_decode_to_the_weights(largest_scale: int) -> None:
    data = torch.randint(0, 256, (3, 96, 80), generator=_seeded(), dtype=torch.uint8)
    scale = torch.randint(largest_scale - 9, largest_scale + 1, (3, 96, 5), generator=_seeded(), dtype=torch.uint8)
    weight = QuantTensor(data, scale, "mxfp4")

    packed: ExpertWeights = pack_experts({"down": weight}, Site())["down"].payload

    assert torch.equal(_decoded(packed)[:, :96, :160], dequantize_values(weight, torch.float32))


@pytest.mark.parametrize("largest_scale", [120, 150])
def test_fp8_words_decode_to_the_weights(largest_scale: int) -> None:
    data = torch.randint(0, 256, (64, 160), generator=_seeded(), dtype=torch.uint8)
    data[data & 0x7F == 0x7F] = 0  # NaN is no weight
    scale = torch.randint(largest_scale - 9, largest_scale + 1, (2, 5), generator=_seeded(), dtype=torch.uint8)
    weight = QuantTensor(data.view(torch.float8_e4m3fn), scale, "fp8_block32")

    packed: ExpertWeights = pack_experts({"shared_gate_up": weight}, Site())["shared_gate_up"].payload

    gate, up = _decoded(packed)[0].unflatten(0, (2, 64))
    values = torch.cat((gate[:32], up[:32]))[:, :160]
    assert torch.equal(values, dequantize_values(weight, torch.float32))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(20)


def _decoded(weights: ExpertWeights) -> Tensor:
    """``[experts, rows, channels]`` float32: every plane through the instructions of the kernel, times the factor."""
    words, scales = weights.words.long() & _WORD, (weights.scales.long() & _WORD).unsqueeze(-1)
    factors = [_run(expert_weights.FACTOR.value, [None, scales, 0x4040 + 0x0101 * plane])[0] for plane in range(4)]
    text = expert_weights.FP4_PLANES if words.shape[3] == 1 else expert_weights.FP8_PLANES
    halves = [
        half
        for plane, factor in enumerate(factors)
        for half in _run(text[plane % len(text)], [None, None, words[:, :, :, plane // len(text)], factor])
    ]
    planes = [torch.stack(pair, -1).flatten(-2) for pair in zip(halves[::2], halves[1::2], strict=True)]
    numbers = _float(torch.cat(planes, -1)).movedim(2, 3).flatten(3).flatten(1, 2)
    return numbers * weights.factors[:, None, None]


def _run(text: str, operands: list[Tensor | int | None]) -> list[Tensor]:
    """Carry out PTX on 32-bit numbers in int64 tensors; operands that are None are results, given back in order."""
    values: dict[str, Any] = {f"${n}": v for n, v in enumerate(operands) if v is not None}
    for line in text.strip("{} \n").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        names = re.findall(r"\$?\w+", rest)
        if name == "mov.b32":
            values[names[0]], values[names[1]] = values[names[2]] & 0xFFFF, values[names[2]] >> 16
        else:
            values[names[0]] = _INSTRUCTIONS[name](*(values[n] if n in values else int(n, 0) for n in names[1:]))
    return [values[f"${n}"] for n, v in enumerate(operands) if v is None]


def _float(halves: Tensor) -> Tensor:
    """bfloat16 bit patterns as float32."""
    return (halves << 16).to(torch.int32).view(torch.float32)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Two bfloat16 products; each must be exact."""
    result = torch.zeros_like(a + b)
    for shift in (0, 16):
        bits = (_float((a >> shift) & 0xFFFF) * _float((b >> shift) & 0xFFFF)).view(torch.int32).long() & _WORD
        assert not (bits & 0xFFFF).any()
        result |= (bits >> 16) << shift
    return result


def _chosen_bytes(a: Tensor, b: int, selector: int) -> Tensor:
    source = [(a >> (8 * n)) & 0xFF for n in range(4)] + [torch.full_like(a, (b >> (8 * n)) & 0xFF) for n in range(4)]
    return sum((source[(selector >> (4 * n)) & 7] << (8 * n) for n in range(4)), torch.zeros_like(a))


def _and_or(a: Tensor, b: int, c: Tensor, table: int) -> Tensor:
    assert table == 0xEA  # (a & b) | c
    return (a & b) | c


_INSTRUCTIONS: dict[str, Callable[..., Tensor]] = {
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: (a << b) & _WORD,
    "shr.b32": lambda a, b: a >> b,
    "shf.r.wrap.b32": lambda low, high, b: (((high << 32) | low) >> b) & _WORD,
    "lop3.b32": _and_or,
    "mul.rn.bf16x2": _product,
    "prmt.b32": _chosen_bytes,
}
