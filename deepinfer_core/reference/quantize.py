"""Quantising on the CPU leaves the rounded values; dequantising hands them on."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.quantize.rounding import quantize_rows
from deepinfer_core.reference.chunks import map_rows
from deepinfer_core.reference.codes import decode
from deepinfer_core.reference.rounding import GRIDS, ROUNDED, cast, round_rows, rounded_rows
from deepinfer_core.tensor import QuantTensor


def run_quantize(x: Tensor, *, format: str) -> QuantTensor:
    """``quantize.quantize``: rounded values for the formats with power-of-two scales, else codes."""
    grid = GRIDS.get(format)
    if grid is None:
        return quantize_rows(x, FORMATS[format])

    def work(rows: Tensor) -> Tensor:
        wide = rows.float()
        return round_rows(wide, grid).copysign_(wide)

    return rounded_rows(map_rows(work, (x,), 2 * x.shape[-1], torch.float32), format)


def run_dequantize(x: QuantTensor, *, out: str) -> Tensor:
    """``quantize.dequantize`` of either storage."""
    if x.storage == ROUNDED:
        return cast(x.data, TORCH_DTYPES[out])
    return cast(decode(x.data.view(torch.uint8), x.scale, x.spec), TORCH_DTYPES[out])
