"""Hash constants as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def constant_row(values: Sequence[int]) -> Tensor:
    """Exact int64 numbers (multipliers are wider than a double's mantissa)."""
    return torch.tensor(list(values), dtype=torch.int64)
