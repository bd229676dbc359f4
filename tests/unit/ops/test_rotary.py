"""Rotation of the trailing channels (spec attention/01 section 5)."""

from __future__ import annotations

import math

import torch

from deepinfer_core.config.architecture import RopeScaling
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.ops.rotary.frequencies import rotary_frequencies

RELEASED = RopeScaling(factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536)


def table(positions: int = 500, width: int = 64) -> torch.Tensor:
    angle = torch.arange(positions)[:, None] * rotary_frequencies(width, 160000.0, RELEASED).double()
    return torch.cat((angle.cos(), angle.sin()), -1).float()


def heads(seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(40, 3, 512, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some_positions(seed: int) -> torch.Tensor:
    return torch.randint(0, 500, (40,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def test_the_inverse_undoes_the_rotation_up_to_one_rounding() -> None:
    x, positions = heads(1), some_positions(1)

    back = apply_rotary(apply_rotary(x, positions, table()), positions, table(), inverse=True)

    pairs = x[..., 448:].unflatten(-1, (-1, 2)).float().norm(dim=-1).repeat_interleave(2, -1)
    assert ((back - x)[..., 448:].float().abs() <= 2**-7 * pairs).all()


def test_channels_before_the_rotated_ones_never_change() -> None:
    x = heads(2)

    assert torch.equal(apply_rotary(x, some_positions(2), table())[..., :448], x[..., :448])


def test_position_zero_is_the_identity() -> None:
    x = heads(3)

    assert torch.equal(apply_rotary(x, torch.zeros(40, dtype=torch.int32), table()), x)


def test_neighbouring_channels_turn_by_position_times_frequency() -> None:
    x, positions, frequency = heads(4, torch.float64), some_positions(4), rotary_frequencies(64, 160000.0, RELEASED)

    found = apply_rotary(x, positions, table())

    for row, pair in ((0, 0), (7, 3), (39, 31)):
        angle = int(positions[row]) * float(frequency[pair])
        even, odd = x[row, 1, 448 + 2 * pair : 450 + 2 * pair].tolist()
        turned = [even * math.cos(angle) - odd * math.sin(angle), even * math.sin(angle) + odd * math.cos(angle)]
        torch.testing.assert_close(found[row, 1, 448 + 2 * pair : 450 + 2 * pair].tolist(), turned, rtol=0, atol=1e-6)


def test_scaled_frequencies_of_the_released_model() -> None:
    """Pairs 0 .. 15 as they are, from 25 on a sixteenth, a straight line of weights between."""
    plain, scaled = rotary_frequencies(64, 160000.0, None), rotary_frequencies(64, 160000.0, RELEASED)

    ramp = torch.tensor([min(max((pair - 15) / 10, 0.0), 1.0) for pair in range(32)], dtype=torch.float64)
    expected = 160000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    assert torch.equal(scaled[:16], plain[:16])
    torch.testing.assert_close(plain.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled.double(), expected * (1 - ramp) + expected / 16 * ramp, rtol=1e-6, atol=0)
