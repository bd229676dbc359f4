"""``linear``: linear maps with dense and FP8 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.kernels.decode_weight import decode_weight_kernel
from deepinfer_cuda.kernels.dense_linear import dense_linear_kernel
from deepinfer_cuda.kernels.e4m3_operands import WEIGHT_UNIT
from deepinfer_cuda.kernels.fp8_linear import fp8_linear_kernel
from deepinfer_cuda.kernels.sum_splits import sum_splits_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.linear_tiles import ProductTile, num_parts, product_tile
from deepinfer_cuda.ops.linear_weight import Fp8Weight, pack_linear
from deepinfer_cuda.ops.quantize import run_dequantize
from deepinfer_cuda.scratch import SCRATCH_BYTES, piece_bytes, row_pieces

_FEW_ROWS = 64
"""Up to so many MXFP8 rows are decoded by each program that needs them; more are decoded once, by a kernel before."""
_WORD_CHANNELS = 128
"""Channels whose four scale bytes are one word."""
_SUM_BLOCK = 1024
_DECODED_ROWS = 64
"""Rows of a weight that a program decodes, :data:`_WORD_CHANNELS` channels of them."""


def run_linear(x: Tensor | QuantTensor, weight: Tensor | Packed, *, out: str) -> Tensor:
    """``linear.linear``."""
    return product(x, weight, groups=1, out=out)


def run_grouped_linear(x: Tensor | QuantTensor, weight: Tensor | Packed, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear``."""
    return product(x, weight, groups=groups, out=out)


def product(x: Tensor | QuantTensor, weight: Tensor | Packed, *, groups: int, out: str) -> Tensor:
    """Rows times the transpose of a packed weight, group by group; many rows piece by piece (``scratch``).

    Args:
        x: ``[T, groups * width]`` in bf16 or MXFP8.
        weight: From :func:`pack_linear`.
        groups: Independent maps.
        out: ``bf16`` or ``f32``.
    """
    num_rows, num_in = x.shape
    num_out = weight.shape[0]
    result = torch.empty((num_rows, num_out), dtype=TORCH_DTYPES[out], device=x.data.device)
    bytes_per_row = product_bytes(num_out, num_in, groups, decoded=isinstance(x, QuantTensor))
    room = SCRATCH_BYTES - (weight_room(num_rows, num_out, num_in, groups) if isinstance(weight, Packed) else 0)
    for piece in row_pieces(num_rows, bytes_per_row, room):
        write_product(x[piece], weight, groups, result[piece])
    return result


def write_product(x: Tensor | QuantTensor, weight: Tensor | Packed, groups: int, result: Tensor) -> None:
    """:func:`product` of rows that are worked on at once, into dense rows."""
    num_rows = x.shape[0]
    if isinstance(weight, Packed):
        packed: Fp8Weight = weight.payload
        tile = product_tile("fp8", num_rows, packed.num_out, packed.width, packed.groups)
        fp8_product(x, packed, result, tile)
        return
    kind = "dense" if weight.dtype == torch.bfloat16 else "float32"
    tile = product_tile(kind, num_rows, weight.shape[0] // groups, weight.shape[1], groups)
    dense_product(_dense(x), weight, groups, result, tile)


def product_bytes(num_out: int, num_in: int, groups: int, *, decoded: bool) -> int:
    """What :func:`write_product` takes for a row at most: decoded rows, and sums of parts that have programs each.

    Args:
        num_out: Channels of the result.
        num_in: Channels of a row.
        groups: Independent maps.
        decoded: Whether rows come in MXFP8.
    """
    parts = num_parts(num_out, num_in // groups)
    return (2 * num_in if decoded else 0) + (4 * parts * num_out if parts > 1 else 0)


def weight_room(num_rows: int, num_out: int, num_in: int, groups: int) -> int:
    """What :func:`write_product` takes besides, for the FP8 weight if it is decoded for so many rows.

    Args:
        num_rows: Rows of the call; of fewer rows it takes no more.
        num_out: Channels of the result.
        num_in: Channels of a row.
        groups: Independent maps.
    """
    width = -(-num_in // groups // _WORD_CHANNELS) * _WORD_CHANNELS
    tile = product_tile("fp8", num_rows, num_out // groups, num_in // groups, groups)
    return 2 * num_out * width if tile.weights_first else 0


def fp8_product(x: Tensor | QuantTensor, weight: Fp8Weight, result: Tensor, tile: ProductTile) -> None:
    """Rows times the transpose of an FP8 weight, cut as told, into dense rows."""
    if tile.weights_first:
        _decoded_product(_dense(x), weight, result, tile)
        return
    num_rows = x.shape[0]
    words = _scale_words(x, weight.width, tile) if isinstance(x, QuantTensor) else None
    rows, stride = rows_of(x.data if words is not None and isinstance(x, QuantTensor) else _dense(x))
    target = _target(tile, result)
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
    _sum_parts(tile, result, target)


def dense_product(x: Tensor, weight: Tensor, groups: int, result: Tensor, tile: ProductTile) -> None:
    """Rows times the transpose of a dense weight, cut as told, into dense rows."""
    _dense_product(x, weight, groups, result, tile, weight.shape[1], 1.0)


def _decoded_product(x: Tensor, weight: Fp8Weight, result: Tensor, tile: ProductTile) -> None:
    """Rows times the transpose of an FP8 weight that is decoded to bf16 in memory first."""
    num_out, width, groups = weight.num_out, weight.padded_width, weight.groups
    padded_out = 2 * weight.data.shape[0] // groups
    decoded = torch.empty((groups * num_out, width), dtype=torch.bfloat16, device=result.device)
    launch(
        decode_weight_kernel,
        (-(-num_out // _DECODED_ROWS), width // _WORD_CHANNELS, groups),
        *(weight.data, weight.factor, decoded, num_out, padded_out),
        WIDTH=width,
        CHAINED=tile.chained,
        BLOCK_OUT=_DECODED_ROWS,
        BLOCK_IN=_WORD_CHANNELS,
    )
    _dense_product(x, decoded, groups, result, tile, weight.width, float(WEIGHT_UNIT.value))


def _dense_product(
    x: Tensor, weight: Tensor, groups: int, result: Tensor, tile: ProductTile, width: int, unit: float
) -> None:
    num_rows, total_out = x.shape[0], weight.shape[0]
    rows, stride = rows_of(x)
    target = _target(tile, result)
    launch(
        dense_linear_kernel,
        tile.grid(num_rows, total_out // groups, groups),
        *(rows, weight, target, _parked(tile, target)),
        *(num_rows, total_out // groups, stride, weight.stride(0), total_out),
        WIDTH=width,
        UNIT=unit,
        PARKED=tile.parked and not tile.spread and tile.parts > 1,
        **tile.constants,
    )
    _sum_parts(tile, result, target)


def _dense(x: Tensor | QuantTensor) -> Tensor:
    """Rows as bf16."""
    return run_dequantize(x, out="bf16") if isinstance(x, QuantTensor) else x


def _scale_words(x: QuantTensor, width: int, tile: ProductTile) -> Tensor | None:
    """Scale bytes of rows as words of four, or None where each program had better not decode the rows."""
    scale, stride = rows_of(x.scale)
    if x.shape[0] > _FEW_ROWS or tile.rows_first or tile.block_in != _WORD_CHANNELS or width % _WORD_CHANNELS:
        return None
    if stride % 4 or scale.storage_offset() % 4:
        return None
    return scale.view(torch.int32)


def _target(tile: ProductTile, result: Tensor) -> Tensor:
    """What the product is written to: the result itself or the sums of its parts."""
    return result.new_empty((tile.parts, *result.shape), dtype=torch.float32) if tile.spread else result


def _parked(tile: ProductTile, target: Tensor) -> Tensor:
    """Where sums of parts wait, if they do."""
    needed = tile.parked and not tile.spread and tile.parts > 1
    return torch.empty_like(target, dtype=torch.float32) if needed else target


def _sum_parts(tile: ProductTile, result: Tensor, parts: Tensor) -> None:
    """Add the parts of the result, if it has any."""
    if not tile.spread:
        return
    launch(
        sum_splits_kernel,
        (-(-result.numel() // _SUM_BLOCK),),
        parts,
        result,
        result.numel(),
        SPLITS=tile.parts,
        BLOCK=_SUM_BLOCK,
        **tile.chain,
    )


def product_workspace(request: PlanRequest, site: Site) -> int:
    """Room of a linear map with sizes ``I`` and ``O``; rows may come in MXFP8."""
    sizes, groups = site.sizes, site.attributes.get("groups", 1)
    shape = sizes["O"], sizes["I"], groups
    weight = weight_room(request.rows, *shape)
    return weight + piece_bytes(request.rows, product_bytes(*shape, decoded=True), SCRATCH_BYTES - weight)


_LIMITS = (dtype_in("bf16"), attribute_in("out", "bf16", "f32"))

IMPLEMENTATIONS = {
    op: (Implementation(run, _LIMITS, pack=pack_linear, row_invariant=True, workspace=product_workspace),)
    for op, run in {linear: run_linear, grouped_linear: run_grouped_linear}.items()
}
