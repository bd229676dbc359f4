"""``rotary``: rotation of heads by position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.limits import dtype_in, one_of
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.kernels.apply_rotary import apply_rotary_kernel, rotate_back_quantize_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.quantised import empty_quantised

CHANNELS = one_of("D", 32, 64, 128, 256, 512)
"""Heads that the kernels take: a power of two, in whole groups of MXFP8."""
_ELEMENTS = 4096
"""Numbers that one program turns."""
_NUM_WARPS = 8


def run_apply_rotary(x: Tensor, positions: Tensor, table: Tensor, *, inverse: bool = False) -> Tensor:
    """``rotary.apply_rotary``."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cut, num_programs, row_stride = _cut(x, table)
    launch(
        apply_rotary_kernel,
        (num_programs,),
        *(rows, positions.contiguous(), table, result, x.shape[0] * x.shape[1], row_stride, table.stride(0)),
        INVERSE=inverse,
        **cut,
    )
    return result


def rotate_back_quantize(x: Tensor, positions: Tensor, table: Tensor) -> QuantTensor:
    """Inverse rotation, then MXFP8 ``[T, N * D]``, with the roundings of the two ops one after the other."""
    num_rows, num_heads, channels = x.shape
    result = empty_quantised((num_rows, num_heads * channels), "mxfp8", x.device)
    _rotate_back(x, positions, table, result.data.view(torch.uint8), result.scale)
    return result


def rotate_back_through_mxfp8(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """The numbers, in bf16, for which the result of :func:`rotate_back_quantize` stands."""
    num_rows, num_heads, channels = x.shape
    result = torch.empty((num_rows, num_heads * channels), dtype=torch.bfloat16, device=x.device)
    _rotate_back(x, positions, table, result, None)
    return result


def _rotate_back(x: Tensor, positions: Tensor, table: Tensor, values: Tensor, scales: Tensor | None) -> None:
    rows, cut, num_programs, row_stride = _cut(x, table)
    launch(
        rotate_back_quantize_kernel,
        (num_programs,),
        *(rows, positions.contiguous(), table, values, scales, x.shape[0] * x.shape[1], row_stride, table.stride(0)),
        **cut,
    )


def _cut(x: Tensor, table: Tensor) -> tuple[Tensor, dict[str, Any], int, int]:
    """Rows of heads without gaps in a row, constants of the kernels, programs, and the distance of rows."""
    num_rows, num_heads, channels = x.shape
    vectors = _ELEMENTS // channels
    rows, row_stride = rows_of(x.flatten(1))
    constants = {
        "NUM_HEADS": num_heads,
        "CHANNELS": channels,
        "TURNED": table.shape[1],
        "VECTORS": vectors,
        "num_warps": _NUM_WARPS,
    }
    return rows, constants, -(-num_rows * num_heads // vectors), row_stride


IMPLEMENTATIONS = {
    apply_rotary: (Implementation(run_apply_rotary, (dtype_in("bf16", "f32"), CHANNELS), row_invariant=True),),
}
