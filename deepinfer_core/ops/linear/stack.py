"""Stack weights along their output rows, so that maps of one input run as one linear."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.errors import InternalError
from deepinfer_core.tensor import QuantTensor


def stack_rows(*weights: Tensor | QuantTensor) -> Tensor | QuantTensor:
    """``[w0; w1; ...]``. All dense or all of one format; rows of a block format are whole blocks.

    Output rows are independent, so stacking changes no number.
    """
    if all(isinstance(w, Tensor) for w in weights):
        return torch.cat([w for w in weights if isinstance(w, Tensor)])
    quantized = [w for w in weights if isinstance(w, QuantTensor)]
    first = quantized[0]
    if len(quantized) != len(weights) or any(
        w.format != first.format or w.shape[0] % first.spec.rows for w in quantized
    ):
        raise InternalError(f"cannot stack weights {[(getattr(w, 'format', 'dense'), w.shape) for w in weights]}")
    return QuantTensor(torch.cat([w.data for w in quantized]), torch.cat([w.scale for w in quantized]), first.format)


def join_columns(parts: tuple[Tensor, ...]) -> Tensor:
    """Rows side by side: ``[T, sum of widths]``."""
    return torch.cat(parts, -1)
