"""Operands of the product that scores index keys: tiles of cached keys, heads of a few rows, and their weights.

A lane of an accumulator's quad holds columns ``2 l`` and ``2 l + 1`` of every eight. The order of heads here gives it
whole chains, so that the sum over heads happens within lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.fp4_words import CHANNELS, fp4_words_to_bf16, group_bytes
from deepinfer_cuda.kernels.number_formats import INTERPRETED

HEADS = tl.constexpr(32)
"""Index heads of a row; fewer are padded with heads of weight zero."""


@triton.jit
def _columns(QUERIES: tl.constexpr):
    """Query and head of each column of the right operand.

    One query: lane ``l`` has chain ``l``, so heads ``l``, ``l + 4``, ... Four: lane ``l`` has all heads of query ``l``.
    """
    place = tl.arange(0, QUERIES * HEADS)
    lane, rank = place % 8 // 2, place // 8 * 2 + place % 2
    if QUERIES == 1:
        return lane * 0, lane + 4 * rank
    return lane, rank


@triton.jit
def query_operand(
    query_ptr,
    scale_ptr,
    stride,
    scale_stride,
    num_rows,
    QUERIES: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
):
    """Heads of the rows as the right operand ``[channels, QUERIES * 32]``, times 2^32."""
    query, head = _columns(QUERIES)
    row = tl.program_id(0) * QUERIES + query
    there = ((row < num_rows) & (head < NUM_HEADS))[:, None]
    row, head = row.to(tl.int64)[:, None], head[:, None]
    group = tl.arange(0, 4)[None, :]
    scales = group_bytes(scale_ptr + row * scale_stride + head * NUM_GROUPS, group, NUM_GROUPS, there)
    address = tl.expand_dims(query_ptr + row * stride + head * (4 * NUM_GROUPS) + group * 4, -1) + tl.arange(0, 4)
    words = tl.load(address, mask=tl.expand_dims(there & (group < NUM_GROUPS), -1), other=0)
    numbers = tl.reshape(fp4_words_to_bf16(words, scales), [QUERIES * HEADS, 4, 2, 2, 8])
    return _scaled_up(tl.reshape(tl.permute(numbers, (4, 2, 1, 3, 0)), [CHANNELS, QUERIES * HEADS]))


@triton.jit
def _scaled_up(numbers):
    """bfloat16 numbers times 2^64, exact."""
    if INTERPRETED:
        return (numbers.to(tl.float32) * 18446744073709551616.0).to(tl.bfloat16)
    return numbers * tl.full([1, 1], 18446744073709551616.0, tl.bfloat16)


@triton.jit
def chain_weights(weight_ptr, stride, num_rows, QUERIES: tl.constexpr, NUM_HEADS: tl.constexpr):
    """Weights of the eight steps of the chains: eight tensors ``[1, 4, C]`` of lanes and the chains of a lane."""
    lane = tl.arange(0, 4)[None, :, None]
    if QUERIES == 1:
        row, chain = tl.program_id(0) + 0 * lane, lane
    else:
        row, chain = tl.program_id(0) * QUERIES + lane, tl.arange(0, 4)[None, None, :]
    address, real = weight_ptr + row.to(tl.int64) * stride, row < num_rows
    weights = ()
    for step in tl.static_range(8):
        head = chain + 4 * step
        weights += (tl.load(address + head, mask=real & (head < NUM_HEADS), other=0.0),)
    return weights


@triton.jit
def _tile_columns(TILE: tl.constexpr, WARPS: tl.constexpr):
    """Columns of a tile as ``[1, c, a, b, r]``: row of a left operand's eighth, warp, half, repetition.

    Triton gives the axes of a load to lanes, warps and registers in this order, which is where the product wants them.
    The first axis is for the groups of a row.
    """
    repetition = tl.arange(0, TILE // (16 * WARPS))[None, None, None, None, :] * (16 * WARPS)
    half = tl.arange(0, 2)[None, None, None, :, None] * 8
    warp = tl.arange(0, WARPS)[None, None, :, None, None] * 16
    return repetition + half + warp, tl.arange(0, 8)[None, :, None, None, None]


@triton.jit
def candidate_entry(column, candidates, num_candidates, SIZE: tl.constexpr):
    """Entry of a compact column, negative where there is none."""
    index = column // SIZE
    block = tl.load(candidates + index, mask=index < num_candidates, other=-1)
    return block * SIZE + tl.where(block >= 0, column % SIZE, 0)


@triton.jit
def tile_places(
    start,
    candidates,
    num_candidates,
    TILE: tl.constexpr,
    WARPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """What says in which cache blocks a tile's columns lie: an entry of a whole repetition, of eight, or of each.

    Args:
        start: First column.
        candidates: See ``index_scores_kernel``, as for the next ones; they are loaded with ``SIZE``.
        num_candidates: See there.
        TILE: See there.
        WARPS: See there.
        BLOCK_ROWS: See there.
        SIZE: Entries of a candidate; 0 for columns that are entries.
    """
    eight, within = _tile_columns(TILE, WARPS)
    if SIZE > 0:
        column = start + eight if SIZE % 8 == 0 else start + eight + within
        places = tl.maximum(candidate_entry(column, candidates, num_candidates, SIZE), 0)
    elif BLOCK_ROWS % (16 * WARPS) == 0:
        places = start + tl.arange(0, TILE // (16 * WARPS))[None, None, None, None, :] * (16 * WARPS)
    else:
        places = start + eight
    return places


@triton.jit
def place_blocks(places, table, num_blocks, any_column, BLOCK_ROWS: tl.constexpr):
    """Cache blocks of :func:`tile_places`; the dummy block where a row has no column at all."""
    return tl.load(table + tl.minimum(places // BLOCK_ROWS, num_blocks - 1), mask=any_column, other=0)


@triton.jit
def tile_offsets(start, places, TILE: tl.constexpr, WARPS: tl.constexpr, BLOCK_ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Rows of a tile's columns within their cache blocks, from :func:`tile_places`."""
    eight, within = _tile_columns(TILE, WARPS)
    if SIZE == 0:
        entries = start + eight + within
    elif SIZE % 8 == 0:
        entries = places + within
    else:
        entries = places
    return entries % BLOCK_ROWS


@triton.jit
def load_keys(
    keys_ptr,
    block,
    offset,
    block_stride,
    BLOCK_ROWS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BY_LANE: tl.constexpr,
):
    """Words of a tile's keys and what holds their scales, as loaded: nothing here waits for memory.

    ``BY_LANE`` has the word with the scales of a key loaded by each of the four lanes that need it: else it comes by
    way of shared memory, which is no loss only for loads that go there anyhow.
    """
    start = block.to(tl.int64) * block_stride
    group = tl.arange(0, 4)[:, None, None, None, None]
    scales = (keys_ptr + start + BLOCK_ROWS * (4 * NUM_GROUPS)).to(tl.pointer_type(tl.uint8)) + offset * NUM_GROUPS
    address = tl.expand_dims(keys_ptr + start + offset * (4 * NUM_GROUPS) + group * 4, -1) + tl.arange(0, 4)
    if NUM_GROUPS == 4:
        words = tl.load(address)
        scales = scales.to(tl.pointer_type(tl.int32))
        held = tl.load(tl.broadcast_to(scales, words.shape[:-1]) if BY_LANE else scales)
    else:
        words = tl.load(address, mask=tl.expand_dims(group < NUM_GROUPS, -1), other=0)
        held = tl.load(scales + group, mask=group < NUM_GROUPS, other=0)
    return words, held


@triton.jit
def key_operand(words, scales, TILE: tl.constexpr, WARPS: tl.constexpr, NUM_GROUPS: tl.constexpr):
    """Loaded keys as the left operand ``[TILE, channels]``, times 2^-32."""
    if NUM_GROUPS == 4:
        scales = (scales >> (8 * tl.arange(0, 4)[:, None, None, None, None])) & 0xFF
    numbers = fp4_words_to_bf16(words, scales.to(tl.int32))
    numbers = tl.reshape(numbers, [4, 8, WARPS, 2, TILE // (16 * WARPS), 2, 2, 8])
    return tl.reshape(tl.permute(numbers, (4, 2, 3, 1, 7, 5, 0, 6)), [TILE, CHANNELS])
