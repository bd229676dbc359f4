"""Pairs of row and slot with their weights, by expert and cut into tiles; beside it, MXFP8 rows as bfloat16."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import e4m3_to_float, power_of_two, rounded

_TILES = tl.constexpr(64)
"""Tiles of the list that are written at once."""


@triton.jit
def sort_experts_kernel(
    ids_ptr, weights_ptr, order_ptr, sorted_weights_ptr, tiles_ptr, values_ptr, scales_ptr, rows_ptr,
    num_pairs, num_experts, num_tiles, ids_row_stride, weights_row_stride, values_row_stride, scales_row_stride,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, UNIT: tl.constexpr, COMPACT: tl.constexpr,
    WIDTH: tl.constexpr, ROW_BLOCK: tl.constexpr,
):  # fmt: skip
    """Program ``e < num_experts`` finds the pairs of expert ``e``; each one behind these widens a quantised row.

    The list of tiles is three rows of ``num_tiles``: expert (-1: none), first place in the order, one past the last.
    An expert has as few tiles of at most ``TILE`` pairs as it can, of equal sizes that are multiples of ``UNIT``.
    """
    program = tl.program_id(0)
    if values_ptr is not None:  # noqa: SIM102 - known when the kernel is compiled, the next is not
        if program >= num_experts:
            _widen(
                values_ptr, scales_ptr, rows_ptr, (program - num_experts).to(tl.int64),
                values_row_stride, scales_row_stride, WIDTH, ROW_BLOCK,
            )  # fmt: skip
            return
    begin = 0
    count = 0
    for start in range(0, num_pairs, BLOCK):
        ids = _ids(ids_ptr, start + tl.arange(0, BLOCK), num_pairs, ids_row_stride, SLOTS)
        begin += tl.sum(((ids >= 0) & (ids < program)).to(tl.int32), 0)
        count += tl.sum((ids == program).to(tl.int32), 0)
    if COMPACT:
        first, after = _exact_tiles(ids_ptr, num_pairs, program, count, ids_row_stride, SLOTS, BLOCK, TILE)
    else:
        # Room enough, whatever the other experts have: begin // TILE tiles come before, and one more for each of them.
        first = begin // TILE + program
        after = (begin + count) // TILE + program + 1
    if program == num_experts - 1:
        after = num_tiles
    size = tl.cdiv(tl.cdiv(count, tl.maximum(tl.cdiv(count, TILE), 1)), UNIT) * UNIT
    _list_tiles(tiles_ptr, num_tiles, first, after, program, begin, begin + count, size)
    place = begin
    for start in range(0, num_pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        hit = _ids(ids_ptr, pair, num_pairs, ids_row_stride, SLOTS) == program
        weight = tl.load(weights_ptr + (pair // SLOTS) * weights_row_stride + pair % SLOTS, mask=hit)
        to = place + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(order_ptr + to, pair, mask=hit)
        tl.store(sorted_weights_ptr + to, weight, mask=hit)
        place += tl.sum(hit.to(tl.int32), 0)


@triton.jit
def _ids(ids_ptr, pair, num_pairs, row_stride, SLOTS: tl.constexpr):
    """Experts of pairs, -1 past the end."""
    return tl.load(ids_ptr + (pair // SLOTS) * row_stride + pair % SLOTS, mask=pair < num_pairs, other=-1)


@triton.jit
def _exact_tiles(
    ids_ptr, num_pairs, expert, count, row_stride, SLOTS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    """First tile of an expert and of the next one, without gaps: a pair counts for the tile that it begins, if any."""
    mine = tl.arange(0, BLOCK)
    ids = _ids(ids_ptr, mine, num_pairs, row_stride, SLOTS)
    others = tl.arange(0, BLOCK)[:, None]
    earlier = (_ids(ids_ptr, others, num_pairs, row_stride, SLOTS) == ids[None, :]) & (others < mine[None, :])
    begins = (ids >= 0) & (tl.sum(earlier.to(tl.int32), 0) % TILE == 0)
    first = tl.sum((begins & (ids < expert)).to(tl.int32), 0)
    return first, first + tl.cdiv(count, TILE)


@triton.jit
def _list_tiles(tiles_ptr, num_tiles, first, after, expert, begin, end, size):
    """Write tiles ``first .. after - 1``; those that begin past the end are nobody's."""
    for start in range(first, after, _TILES):
        tile = start + tl.arange(0, _TILES)
        from_place = begin + (tile - first) * size
        inside = tile < after
        tl.store(tiles_ptr + tile, tl.where(from_place < end, expert, -1), mask=inside)
        tl.store(tiles_ptr + num_tiles + tile, from_place, mask=inside)
        tl.store(tiles_ptr + 2 * num_tiles + tile, tl.minimum(from_place + size, end), mask=inside)


@triton.jit
def _widen(
    values_ptr, scales_ptr, rows_ptr, row, values_row_stride, scales_row_stride,
    WIDTH: tl.constexpr, ROW_BLOCK: tl.constexpr,
):  # fmt: skip
    """One MXFP8 row as bfloat16, which holds its values exactly."""
    column = tl.arange(0, ROW_BLOCK)
    inside = column < WIDTH
    values = tl.load(values_ptr + row * values_row_stride + column, mask=inside, other=0)
    values = e4m3_to_float(values.to(tl.float8e4nv, bitcast=True))
    scales = tl.load(scales_ptr + row * scales_row_stride + column // 32, mask=inside, other=127)
    tl.store(rows_ptr + row * WIDTH + column, rounded(values * power_of_two(scales), tl.bfloat16), mask=inside)
