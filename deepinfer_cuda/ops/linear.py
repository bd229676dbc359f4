"""``linear``: linear maps with dense and FP8 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import attribute_in, dtype_in
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.kernels.dense_linear import dense_linear_kernel
from deepinfer_cuda.kernels.fp8_linear import fp8_linear_kernel
from deepinfer_cuda.kernels.sum_splits import sum_splits_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.linear_tiles import ProductTile, product_tile
from deepinfer_cuda.ops.linear_weight import Fp8Weight, pack_linear
from deepinfer_cuda.ops.quantize import run_dequantize

_FEW_ROWS = 64
"""Up to so many MXFP8 rows are decoded by each program that needs them; more are decoded once, by a kernel before."""
_WORD_CHANNELS = 128
"""Channels whose four scale bytes are one word."""
_SUM_BLOCK = 1024


def run_linear(x: Tensor | QuantTensor, weight: Tensor | Packed, *, out: str) -> Tensor:
    """``linear.linear``."""
    return product(x, weight, groups=1, out=out)


def run_grouped_linear(x: Tensor | QuantTensor, weight: Tensor | Packed, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear``."""
    return product(x, weight, groups=groups, out=out)


def product(x: Tensor | QuantTensor, weight: Tensor | Packed, *, groups: int, out: str) -> Tensor:
    """Rows times the transpose of a packed weight, group by group.

    Args:
        x: ``[T, groups * width]`` in bf16 or MXFP8.
        weight: From :func:`pack_linear`.
        groups: Independent maps.
        out: ``bf16`` or ``f32``.
    """
    num_rows, dtype = x.shape[0], TORCH_DTYPES[out]
    if isinstance(weight, Packed):
        packed: Fp8Weight = weight.payload
        tile = product_tile("fp8", num_rows, packed.num_out, packed.width, packed.groups)
        return fp8_product(x, packed, dtype, tile)
    kind = "dense" if weight.dtype == torch.bfloat16 else "float32"
    tile = product_tile(kind, num_rows, weight.shape[0] // groups, weight.shape[1], groups)
    return dense_product(_dense(x), weight, groups, dtype, tile)


def fp8_product(x: Tensor | QuantTensor, weight: Fp8Weight, dtype: torch.dtype, tile: ProductTile) -> Tensor:
    """Rows times the transpose of an FP8 weight, cut as told."""
    num_rows = x.shape[0]
    words = _scale_words(x, weight.width, tile) if isinstance(x, QuantTensor) else None
    rows, stride = rows_of(x.data if words is not None and isinstance(x, QuantTensor) else _dense(x))
    result, target = _targets(tile, num_rows, weight.groups * weight.num_out, dtype, rows.device)
    launch(
        fp8_linear_kernel,
        tile.grid(num_rows, weight.num_out, weight.groups),
        *(rows, rows if words is None else words, weight.data, weight.factor, target),
        *(num_rows, weight.num_out, stride, 0 if words is None else words.stride(0), result.shape[1]),
        WIDTH=weight.padded_width,
        X_WIDTH=weight.width,
        SCALED=words is not None,
        **tile.constants,
    )
    return _summed(tile, result, target)


def dense_product(x: Tensor, weight: Tensor, groups: int, dtype: torch.dtype, tile: ProductTile) -> Tensor:
    """Rows times the transpose of a dense weight, cut as told."""
    num_rows, (total_out, width) = x.shape[0], weight.shape
    rows, stride = rows_of(x)
    result, target = _targets(tile, num_rows, total_out, dtype, x.device)
    launch(
        dense_linear_kernel,
        tile.grid(num_rows, total_out // groups, groups),
        *(rows, weight, target, num_rows, total_out // groups, stride, weight.stride(0), total_out),
        WIDTH=width,
        **tile.constants,
    )
    return _summed(tile, result, target)


def _dense(x: Tensor | QuantTensor) -> Tensor:
    """Rows as bf16."""
    return run_dequantize(x, out="bf16") if isinstance(x, QuantTensor) else x


def _scale_words(x: QuantTensor, width: int, tile: ProductTile) -> Tensor | None:
    """Scale bytes of rows as words of four, or None where each program had better not decode the rows."""
    scale, stride = rows_of(x.scale)
    if x.shape[0] > _FEW_ROWS or tile.block_in != _WORD_CHANNELS or width % _WORD_CHANNELS:
        return None
    if stride % 4 or scale.storage_offset() % 4:
        return None
    return scale.view(torch.int32)


def _targets(
    tile: ProductTile, num_rows: int, num_out: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The result, and what the product is written to: the result itself or the sums of its parts."""
    result = torch.empty(num_rows, num_out, dtype=dtype, device=device)
    if not tile.spread:
        return result, result
    return result, torch.empty(tile.parts, num_rows, num_out, dtype=torch.float32, device=device)


def _summed(tile: ProductTile, result: Tensor, parts: Tensor) -> Tensor:
    """The result, after adding its parts if it has any."""
    if tile.spread:
        launch(
            sum_splits_kernel,
            (-(-result.numel() // _SUM_BLOCK),),
            parts,
            result,
            result.numel(),
            SPLITS=tile.parts,
            BLOCK=_SUM_BLOCK,
        )
    return result


_LIMITS = (dtype_in("bf16"), attribute_in("out", "bf16", "f32"))

IMPLEMENTATIONS = {
    linear: (Implementation(run_linear, _LIMITS, pack=pack_linear, row_invariant=True),),
    grouped_linear: (Implementation(run_grouped_linear, _LIMITS, pack=pack_linear, row_invariant=True),),
}
