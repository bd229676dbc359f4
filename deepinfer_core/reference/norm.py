"""Root-mean-square normalisation on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.reference.chunks import map_rows
from deepinfer_core.reference.rounding import GRIDS, constant, round_rows, rounded_rows, through
from deepinfer_core.tensor import QuantTensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``[T, 1]``: one over the root-mean-square of float32 rows."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(constant(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Float32 rows of unit root-mean-square, times a float32 weight."""
    return (x * inverse_rms(x, eps)).mul_(weight)


def run_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """``norm.rms_norm``."""
    wide_weight = weight.float()

    return map_rows(lambda rows: normed(rows.float(), wide_weight, eps), (x,), 2 * x.shape[-1], x.dtype)


def run_rms_norm_quantize(x: Tensor, weight: Tensor, *, eps: float, format: str) -> QuantTensor:
    """``norm.rms_norm_quantize``: the normed row is rounded to the type of ``x``, then to the format."""
    wide_weight, grid = weight.float(), GRIDS[format]

    def work(rows: Tensor) -> Tensor:
        return round_rows(through(normed(rows.float(), wide_weight, eps), x.dtype), grid)

    return rounded_rows(map_rows(work, (x,), 2 * x.shape[-1], torch.float32), format)
