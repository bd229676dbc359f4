"""Rotary angles: frequencies of a layer kind and the table of cosines and sines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_core.config.architecture import AttentionArchitecture, RopeScaling


def rotary_frequencies(width: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """Inverse frequencies ``[width / 2]``, float32 (spec model/07 section 2).

    Args:
        width: Rotated channels.
        base: ``rope_theta`` of the layer kind.
        scaling: YaRN parameters, or None for plain frequencies.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
    frequency = 1.0 / base**exponent
    if scaling is None:
        return frequency
    low = max(math.floor(_turns_dim(width, base, scaling.beta_fast, scaling)), 0)
    high = min(math.ceil(_turns_dim(width, base, scaling.beta_slow, scaling)), width - 1)
    span = (high - low) or 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    return frequency / scaling.factor * ramp + frequency * (1.0 - ramp)


def _turns_dim(width: int, base: float, turns: float, scaling: RopeScaling) -> float:
    """The channel pair whose wavelength makes ``turns`` turns over the original context."""
    return width * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))


def rotary_table(num_positions: int, attention: AttentionArchitecture, *, compressed: bool) -> Tensor:
    """Cosines and sines ``[num_positions, rotary_dim]``, float32: cosines in the first half of a row.

    The angle is a float32 product; its cosine is taken in float64 and rounded, which gives the
    float32 table on every machine (golden README: some CPUs' threaded float32 cosine is off).

    Args:
        num_positions: Positions 0 .. num_positions - 1.
        attention: Widths, bases and scaling.
        compressed: True for layers of ratio > 0 (their own base and YaRN), False for the others and the draft.
    """
    base = attention.compressed_rope_theta if compressed else attention.rope_theta
    scaling = attention.rope_scaling if compressed else None
    frequency = rotary_frequencies(attention.rotary_dim, base, scaling)
    angle = (torch.arange(num_positions, dtype=torch.float32)[:, None] * frequency).double()
    return torch.cat((angle.cos(), angle.sin()), -1).float()
