"""Deterministic random weights in the formats of a checkpoint, for any architecture (spec model/11 section 4)."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.weights.names import ExpectedTensor, expected_tensors

_SCALE_BIAS = 127
_E2M1_RMS = 2.926
"""Root mean square of the sixteen E2M1 values."""

_E4M3_RMS = 64.0
"""Root mean square that the E4M3 values are given: three times that is well below the largest, 448."""


class DummyTensors:
    """Random tensors by published name; a tensor depends on its own name, shape and type only.

    No path of the model is degenerate: mixes, sinks and router biases differ from layer to layer, norm weights
    are near one, matrices keep the size of what passes through them, scales vary from group to group.

    Args:
        architecture: The model's shape.
        device: Where tensors are made. Each kind of device draws numbers of its own: only those made on the host are
            the same on every machine.
    """

    def __init__(self, architecture: ModelArchitecture, device: torch.device | str = "cpu") -> None:
        self._expected = {tensor.name: tensor for tensor in expected_tensors(architecture)}
        self._device = torch.device(device)

    def tensor(self, name: str) -> Tensor:
        """The tensor of a published name, with the element type and shape of the format."""
        expected = self._expected[name]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        match expected.dtypes[0]:
            case "F8_E4M3":
                return _e4m3(expected.shape, generator)
            case "I8":
                return _integers(-128, 128, expected.shape, generator, torch.int8)
            case "F8_E8M0":
                return self._scale(expected, generator)
            case "F32":
                return _dense(expected, generator)
            case _:
                return _dense(expected, generator).to(torch.bfloat16)

    def _scale(self, expected: ExpectedTensor, generator: torch.Generator) -> Tensor:
        """Power-of-two scales under which a row of the weight has unit length, give or take one exponent."""
        weight = self._expected[expected.scale_of or ""]
        if weight.dtypes[0] == "I8":
            width, rms = weight.shape[1] * 2, _E2M1_RMS
        elif weight.name.endswith("engram.embed.weight"):
            width, rms = 1, _E4M3_RMS
        else:
            width, rms = weight.shape[1], _E4M3_RMS
        exponent = round(torch.tensor(width**-0.5 / rms).log2().item())
        jitter = _integers(-1, 2, expected.shape, generator, torch.int64)
        return (jitter + (exponent + _SCALE_BIAS)).to(torch.uint8).view(torch.float8_e8m0fnu)


def _integers(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype, generator=generator, device=generator.device)


def _e4m3(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normally distributed E4M3 values: random bytes look up the 256 quantiles of the distribution."""
    quantiles = torch.special.ndtri((torch.arange(256, dtype=torch.float64) + 0.5) / 256)
    codes = (quantiles * _E4M3_RMS).to(torch.float8_e4m3fn).view(torch.uint8).to(generator.device)
    drawn = _integers(0, 256, shape, generator, torch.uint8)
    return codes[drawn.int()].view(torch.float8_e4m3fn)


def _dense(expected: ExpectedTensor, generator: torch.Generator) -> Tensor:
    """Values of an unquantised tensor, by the kind that its name tells."""
    normal = torch.randn(expected.shape, generator=generator, device=generator.device)
    leaf = expected.name.removesuffix(".weight").rpartition(".")[2]
    if "norm" in leaf or leaf in ("q_weight", "k_weight"):
        return 1 + 0.1 * normal
    if leaf.endswith("_fn") and "hc_" in leaf:
        return 0.01 * normal
    if leaf.startswith("hc_") and leaf.endswith("_scale"):
        return 0.1 + 0.01 * normal
    if leaf in ("bias", "bias_vl"):
        return 0.1 * normal
    if len(expected.shape) == 2 and leaf != "embed":
        return normal * expected.shape[1] ** -0.5
    return normal
