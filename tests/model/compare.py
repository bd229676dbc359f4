"""Two ways of computing the same, compared in float64 arithmetic where only the order of summation may differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BOUND = 1e-9
"""Relative and absolute. Noise of float64 sums is near 1e-14 here; one flipped 4- or 8-bit code is above 1e-4."""


def assert_same(found: Tensor, expected: Tensor, where: str) -> None:
    """Fail with the place, the worst element and its error unless all elements agree."""
    torch.testing.assert_close(found, expected, rtol=BOUND, atol=BOUND, msg=lambda text: f"{where}: {text}")


def assert_same_caches(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Compare the live rows of every cache and layer."""
    assert found.keys() == expected.keys(), where
    for name, rows in expected.items():
        assert_same(found[name], rows, f"{where}, {name}")


def differs(found: Tensor, expected: Tensor) -> bool:
    """Whether the results are not the same, by far; NaN differs from everything."""
    return not torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
