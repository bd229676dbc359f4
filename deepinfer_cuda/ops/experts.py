"""``moe.expert_mlp`` and ``moe.expert_layer``: sort pairs by expert, two grouped products, sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.expert_room import ExpertRoom
from deepinfer_cuda.kernels.combine_experts import combine_experts_kernel
from deepinfer_cuda.kernels.expert_down import expert_down_kernel
from deepinfer_cuda.kernels.expert_gate_up import expert_gate_up_kernel
from deepinfer_cuda.kernels.sort_experts import sort_experts_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.expert_packing import ExpertWeights
from deepinfer_cuda.ops.expert_tuning import ExpertTile, ProductTile, choose_tile
from deepinfer_cuda.row_tiles import power_of_two

_COMPACT_PAIRS = 64
"""Up to so many pairs the list of tiles has no gaps: programs without work would take longer than those with it."""
_SORTED_AT_ONCE = 4096
_COMBINED_COLUMNS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMaps:
    """The maps that a step multiplies with.

    Attributes:
        gate_up: First maps of the routed experts.
        down: Second maps of the routed experts.
        shared_gate_up: That of the shared expert, or None.
        shared_down: That of the shared expert, or None.
    """

    gate_up: ExpertWeights
    down: ExpertWeights
    shared_gate_up: ExpertWeights | None = None
    shared_down: ExpertWeights | None = None

    @property
    def shared_inner(self) -> int:
        """Inner channels of the shared expert, 0 where there is none."""
        return self.shared_down.width if self.shared_down else 0

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes as kernels take them."""
        return {"INNER": self.down.width, "SHARED_INNER": self.shared_inner, "HIDDEN": self.down.rows}

    def room(self, slots: int) -> ExpertRoom:
        """What rows with so many experts take."""
        return ExpertRoom(hidden=self.down.rows, inner=max(self.down.width, self.shared_inner), slots=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerRow:
    """How the inner row is made; attributes of ``moe.expert_mlp``."""

    limit: float | None
    quantize_inner: bool
    round_inner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRows:
    """A step's rows as the products take them.

    Attributes:
        rows: ``[T, H]`` bf16.
        ids: ``[T, K]``.
        order: Pairs (row * K + slot) in the order of their experts.
        weights: Their weights, in this order.
        tiles: ``[3, tiles]``: expert (-1: none), first place, one past the last place.
        tile: Sizes.
    """

    rows: Tensor
    ids: Tensor
    order: Tensor
    weights: Tensor
    tiles: Tensor
    tile: ExpertTile

    @property
    def num_pairs(self) -> int:
        return self.ids.numel()

    def grid(self, channels: int, shared_channels: int, block_n: int) -> tuple[int]:
        """Programs for every tile that there can be, and those of the shared expert."""
        shared_tiles = -(-len(self.rows) // self.tile.block_m)
        routed = self.tiles.shape[1] * -(-channels // block_n)
        return (routed + shared_tiles * -(-shared_channels // block_n) if self.num_pairs else 0,)


def run_expert_mlp(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Packed,
    down: Packed,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """``moe.expert_mlp``."""
    maps = ExpertMaps(gate_up=gate_up.payload, down=down.payload)
    arithmetic = InnerRow(limit=limit, quantize_inner=quantize_inner, round_inner=round_inner)
    result = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.bfloat16, device=ids.device)
    for part in maps.room(ids.shape[1]).pieces(len(ids)):
        step = sort_rows(x[part], ids[part], weights[part], maps)
        second_products(step, maps, first_products(step, maps, arithmetic), result[part].flatten(0, 1))
    return result


def run_expert_layer(
    x: Tensor | QuantTensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Packed,
    down: Packed,
    shared_gate_up: Packed,
    shared_down: Packed,
    *,
    limit: float | None,
    quantize_inner: bool,
    round_inner: bool,
    out: str,
) -> Tensor:
    """``moe.expert_layer``: the shared expert is part of the same products, and results are summed at the end."""
    maps = ExpertMaps(
        gate_up=gate_up.payload,
        down=down.payload,
        shared_gate_up=shared_gate_up.payload,
        shared_down=shared_down.payload,
    )
    arithmetic = InnerRow(limit=limit, quantize_inner=quantize_inner, round_inner=round_inner)
    result = torch.empty(x.shape, dtype=torch.bfloat16, device=ids.device)
    for part in maps.room(ids.shape[1]).pieces(len(ids)):
        step = sort_rows(x[part], ids[part], weights[part], maps)
        _sum_second_products(step, maps, first_products(step, maps, arithmetic), result[part])
    return result


def _sum_second_products(step: SortedRows, maps: ExpertMaps, inner: Tensor, result: Tensor) -> None:
    """Second maps and their sum, some channels at a time where there are many rows."""
    num_rows, hidden = result.shape
    most = maps.room(step.ids.shape[1]).channels_at_once(num_rows)
    for first in range(0, hidden, most):
        channels = min(most, hidden - first)
        products = result.new_empty((step.num_pairs + num_rows, channels))
        second_products(step, maps, inner, products, first)
        routed, shared = products.split((step.num_pairs, num_rows))
        combine(routed.unflatten(0, tuple(step.ids.shape)), shared, step.ids, result.narrow(1, first, channels))
        del products, routed, shared  # their room is that of the next channels


def sort_rows(
    x: Tensor | QuantTensor, ids: Tensor, weights: Tensor, maps: ExpertMaps, tile: ExpertTile | None = None
) -> SortedRows:
    """Sort pairs by expert and widen quantised rows, in one launch.

    Args:
        x: Rows.
        ids: Experts of each row.
        weights: Routing weights.
        maps: The experts.
        tile: Sizes; None: those of the tuning table.
    """
    ids, ids_stride = rows_of(ids)
    weights, weights_stride = rows_of(weights)
    num_pairs, experts = ids.numel(), len(maps.gate_up.factors)
    tile = tile or choose_tile(num_pairs, experts)
    compact = num_pairs <= _COMPACT_PAIRS
    num_tiles = num_pairs // tile.block_m + (min(num_pairs, experts) if compact else experts)
    order = torch.empty(num_pairs, dtype=torch.int32, device=ids.device)
    sorted_weights = torch.empty(num_pairs, dtype=weights.dtype, device=ids.device)
    tiles = torch.empty((3, num_tiles), dtype=torch.int32, device=ids.device)
    num_rows, width = x.shape
    quantised = isinstance(x, QuantTensor)
    rows = torch.empty((num_rows, width), dtype=torch.bfloat16, device=ids.device) if quantised else x
    values, values_stride = rows_of(x.data.view(torch.uint8)) if quantised else (None, 0)
    scales, scales_stride = rows_of(x.scale) if quantised else (None, 0)
    launch(
        sort_experts_kernel,
        (experts + (num_rows if quantised else 0) if num_pairs else 0,),
        *(ids, weights, order, sorted_weights, tiles, values, scales, rows, num_pairs, experts, num_tiles),
        *(ids_stride, weights_stride, values_stride, scales_stride),
        SLOTS=ids.shape[1],
        BLOCK=max(min(power_of_two(num_pairs), _SORTED_AT_ONCE), 16),
        TILE=tile.block_m,
        UNIT=tile.unit_m,
        COMPACT=compact,
        WIDTH=width,
        ROW_BLOCK=power_of_two(width),
        num_warps=8,
    )
    return SortedRows(rows=rows, ids=ids, order=order, weights=sorted_weights, tiles=tiles, tile=tile)


def first_products(step: SortedRows, maps: ExpertMaps, arithmetic: InnerRow) -> Tensor:
    """Inner rows in the order of the pairs, then those of the shared expert; bf16 holds MXFP8 values exactly."""
    rows, rows_stride = rows_of(step.rows)
    widths = (maps.down.width, maps.shared_inner)
    inner = rows.new_empty((step.num_pairs + (len(rows) if maps.shared_inner else 0), max(widths)))
    block_n = min(step.tile.gate_up.block_for(width) for width in widths if width)
    launch(
        expert_gate_up_kernel,
        step.grid(*widths, block_n),
        *(rows, step.order, step.tiles, step.weights, inner),
        *_arguments(maps.gate_up, maps.shared_gate_up),
        *(arithmetic.limit or 0.0, len(rows), step.num_pairs, step.tiles.shape[1]),
        *(rows_stride, inner.stride(0)),
        **maps.sizes,
        SLOTS=step.ids.shape[1],
        HAS_LIMIT=arithmetic.limit is not None,
        ROUND_INNER=arithmetic.round_inner,
        QUANTIZE_INNER=arithmetic.quantize_inner,
        **_constants(step.tile, step.tile.gate_up, block_n),
    )
    return inner


def second_products(step: SortedRows, maps: ExpertMaps, inner: Tensor, result: Tensor, first: int = 0) -> None:
    """Write a row for each pair whose expert is not -1, and behind all pairs one of the shared expert for each row.

    Args:
        step: The sorted rows.
        maps: The experts.
        inner: From :func:`first_products`.
        result: ``[pairs + rows of the shared expert, channels]``, dense: some of the channels.
        first: The first of them, a multiple of 256.
    """
    channels = result.shape[1]
    block_n = step.tile.down.block_for(maps.down.rows)
    launch(
        expert_down_kernel,
        step.grid(channels, channels if maps.shared_inner else 0, block_n),
        *(inner, step.order, step.tiles, result),
        *_arguments(maps.down, maps.shared_down),
        *(len(step.rows), step.num_pairs, step.tiles.shape[1], inner.stride(0), first),
        **maps.sizes,
        CHANNELS=channels,
        **_constants(step.tile, step.tile.down, block_n),
    )


def combine(routed: Tensor, shared: Tensor, ids: Tensor | None, result: Tensor) -> None:
    """Write the sum of the shared expert and the routed ones.

    Args:
        routed: ``[T, K, H]``, last axis dense.
        shared: ``[T, H]``, last axis dense.
        ids: Where it is -1 the slot is not read; None: read every slot.
        result: ``[T, H]``, last axis dense.
    """
    width = shared.shape[1]
    block = min(power_of_two(width), _COMBINED_COLUMNS)
    launch(
        combine_experts_kernel,
        (len(shared), -(-width // block)),
        *(routed, shared, ids, result, routed.stride(0), routed.stride(1), shared.stride(0)),
        *(0 if ids is None else ids.stride(0), result.stride(0)),
        SLOTS=routed.shape[1],
        WIDTH=width,
        BLOCK=block,
        HAS_IDS=ids is not None,
    )


def _arguments(routed: ExpertWeights, shared: ExpertWeights | None) -> tuple[Tensor | None, ...]:
    own = (shared.words, shared.scales, shared.factors) if shared else (None, None, None)
    return routed.words, routed.scales, routed.factors, *own


def _constants(tile: ExpertTile, product: ProductTile, block_n: int) -> dict[str, Any]:
    return {
        "FIRST_M": tile.first_m,
        "TAILS": tile.tails,
        "BLOCK_N": block_n,
        "GROUP": tile.group,
        "PARTS": product.parts,
        "num_warps": product.num_warps,
        "num_stages": product.num_stages,
    }
