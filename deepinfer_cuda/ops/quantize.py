"""``quantize``: rows to and from quantised formats."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import attribute_in, dtype_in
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.kernels.dequantize import dequantize_kernel
from deepinfer_cuda.kernels.quantize import quantize_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.quantised import empty_quantised, group_constants
from deepinfer_cuda.row_tiles import flat_rows, parts_of_rows


def run_quantize(x: Tensor, *, format: str) -> QuantTensor:
    """``quantize.quantize``."""
    rows, stride = flat_rows(x)
    width = x.shape[-1]
    result = empty_quantised(x.shape, format, x.device)
    tile = parts_of_rows(width, "quantize")
    launch(
        quantize_kernel,
        (*tile.grid(len(rows)), -(-width // tile.block)),
        *(rows, result.data.view(torch.uint8), result.scale, len(rows), stride),
        WIDTH=width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
        **group_constants(format),
    )
    return result


def run_dequantize(x: QuantTensor, *, out: str) -> Tensor:
    """``quantize.dequantize``."""
    values, values_stride = flat_rows(x.data.view(torch.uint8))
    scales, scales_stride = flat_rows(x.scale)
    width = x.shape[-1]
    result = torch.empty(x.shape, dtype=TORCH_DTYPES[out], device=x.data.device)
    tile = parts_of_rows(width)
    launch(
        dequantize_kernel,
        (*tile.grid(len(values)), -(-width // tile.block)),
        *(values, scales, result, len(values), values_stride, scales_stride),
        WIDTH=width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
        **group_constants(x.format),
    )
    return result


IMPLEMENTATIONS = {
    quantize: (Implementation(run_quantize, (dtype_in("bf16", "f32"),), row_invariant=True),),
    dequantize: (Implementation(run_dequantize, (attribute_in("out", "bf16", "f32"),), row_invariant=True),),
}
