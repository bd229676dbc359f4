"""``norm``: root-mean-square norms."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.limits import at_most, dtype_in
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_cuda.kernels.rms_norm import rms_norm_kernel
from deepinfer_cuda.launch import launch, rows_of

_WIDEST = 16384
"""Channels of a row that one program holds in registers."""


def run_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """``norm.rms_norm``."""
    rows, stride = rows_of(x)
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[1]
    block = 1 << max(width - 1, 0).bit_length()
    launch(
        rms_norm_kernel,
        (x.shape[0],),
        rows,
        weight,
        result,
        stride,
        result.stride(0),
        eps,
        WIDTH=width,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return result


IMPLEMENTATIONS = {
    rms_norm: (Implementation(run_rms_norm, (dtype_in("bf16", "f32"), at_most("H", _WIDEST)), row_invariant=True),),
}
