"""The arithmetic of references: wide precision inside, one rounding at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.tensor import QuantTensor


def wide(x: Tensor) -> Tensor:
    """``x`` in float32, or unchanged when it is float64 (the exact-comparison variant)."""
    return x if x.dtype == torch.float64 else x.float()


def wide_dtype(x: Tensor | QuantTensor, out: str) -> torch.dtype:
    """Type in which a reference sums: float64 when the input or the result is, else float32."""
    exact = out == "f64" or (isinstance(x, Tensor) and x.dtype == torch.float64)
    return torch.float64 if exact else torch.float32


def wide_name(out: str) -> str:
    """Name of the wide type that goes with an element type."""
    return "f64" if out == "f64" else "f32"
