"""``norm``: root-mean-square norms."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.limits import at_most, dtype_in
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.kernels.rms_norm import rms_norm_kernel
from deepinfer_cuda.kernels.rms_norm_quantize import rms_norm_quantize_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.quantised import empty_quantised, group_constants
from deepinfer_cuda.row_tiles import WIDEST, flat_rows, split_rows


def run_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """``norm.rms_norm``."""
    rows, stride = flat_rows(x)
    width = x.shape[-1]
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tile, rest = split_rows(width)
    launch(
        rms_norm_kernel,
        tile.grid(len(rows)),
        *(rows, weight, result, len(rows), stride, width, eps),
        WIDTH=width,
        FIRST=tile.block,
        REST=rest,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
    )
    return result


def run_rms_norm_quantize(x: Tensor, weight: Tensor, *, eps: float, format: str) -> QuantTensor:
    """``norm.rms_norm_quantize``."""
    rows, stride = flat_rows(x)
    width = x.shape[-1]
    result = empty_quantised(x.shape, format, x.device)
    tile, rest = split_rows(width, "rms_norm_quantize")
    launch(
        rms_norm_quantize_kernel,
        tile.grid(len(rows)),
        *(rows, weight, result.data.view(torch.uint8), result.scale, len(rows), stride, eps),
        WIDTH=width,
        FIRST=tile.block,
        REST=rest,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
        **group_constants(format),
    )
    return result


_LIMITS = (dtype_in("bf16", "f32"), at_most("H", WIDEST))

IMPLEMENTATIONS = {
    rms_norm: (Implementation(run_rms_norm, _LIMITS, row_invariant=True),),
    rms_norm_quantize: (Implementation(run_rms_norm_quantize, _LIMITS, row_invariant=True),),
}
