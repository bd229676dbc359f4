"""Scores of cached FP4 index keys for rows of queries, and their maxima over eight and 64 neighbours.

A tile of keys is the left operand of a tensor-core product, straight from the cache into registers; the right one is
the index heads of one row or four, in an order that leaves each lane with whole chains. So the sum over heads needs no
exchange between lanes but, for one row, the last two additions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.index_operands import (
    candidate_entry,
    chain_weights,
    key_operand,
    load_keys,
    place_blocks,
    query_operand,
    tile_offsets,
    tile_places,
)
from deepinfer_cuda.kernels.number_formats import INTERPRETED, rounded

_STEP = tl.constexpr("{ .reg .b32 dot; cvt.rn.relu.bf16x2.f32 dot, $2, $1; fma.rn.bf16x2 $0, dot, $3, $4; }")
"""Two numbers at a time: the dot product rounded to bfloat16 after relu, times the weight, plus the chain."""


@triton.jit
def index_scores_kernel(
    query_ptr,
    query_scale_ptr,
    weight_ptr,
    keys_ptr,
    table_ptr,
    sequence_ptr,
    visible_ptr,
    candidates_ptr,
    scores_ptr,
    maxima_ptr,
    query_stride,
    query_scale_stride,
    weight_stride,
    block_stride,
    table_stride,
    candidates_stride,
    scores_stride,
    maxima_stride,
    num_rows,
    num_blocks,
    num_candidates,
    width,
    second_maxima,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    WARPS: tl.constexpr,
    CANDIDATE_SIZE: tl.constexpr,
    NUM_MAXIMA: tl.constexpr,
    FILL: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program ``(i, s)`` scores tiles s, s + S, ... of the keys for rows ``i * QUERIES ..``.

    Args:
        query_ptr: Words ``[T, X, channels / 8]``.
        query_scale_ptr: Bytes ``[T, X, groups]``.
        weight_ptr: ``[T, X]``.
        keys_ptr: Words ``[blocks, ...]``: the values of a block's keys, then their scales.
        table_ptr: Blocks of each sequence.
        sequence_ptr: Sequence of each row, -1 for none.
        visible_ptr: Entries that each row sees.
        candidates_ptr: Blocks of ``CANDIDATE_SIZE`` entries that are scored, ``[T, num_candidates]``, side by side.
        scores_ptr: ``[T, width]``.
        maxima_ptr: Largest score of every eight columns ``[T, ceil(width / 8)]``; with ``NUM_MAXIMA`` 2, from column
            ``second_maxima`` on those of every 64.
        query_stride: Distance of rows in words; the other strides count elements of their tensors.
        query_scale_stride: See there.
        weight_stride: See there.
        block_stride: Distance of cache blocks in words.
        table_stride: See there.
        candidates_stride: See there.
        scores_stride: See there.
        maxima_stride: See there.
        num_rows: T.
        num_blocks: Columns of the table.
        num_candidates: Columns of the candidates.
        width: Columns of the result.
        second_maxima: See ``maxima_ptr``.
        NUM_HEADS: X.
        NUM_GROUPS: Groups of 32 channels.
        BLOCK_ROWS: Keys of a cache block.
        QUERIES: Rows of a program, 1 or 4; they share the keys of a tile where they belong to one sequence.
        TILE: Keys of a tile.
        WARPS: Warps of the program.
        CANDIDATE_SIZE: 0 to score all entries of the sequence.
        NUM_MAXIMA: 0, 1 or 2.
        FILL: Whether columns that are not visible become -inf as far as ``width``; else what lies there is undefined.
        AHEAD: Whether the keys of the next tile are on their way, to registers, while a tile is scored. Triton's own
            pipeline puts these loads behind the product and then waits for them at once.
        STAGES: Depth of that pipeline, 1 for none.
    """
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    real = row < num_rows
    sequence = tl.load(sequence_ptr + row, mask=real, other=-1)
    visible = tl.where(sequence >= 0, tl.load(visible_ptr + row, mask=real, other=0), 0)
    row = row.to(tl.int64)
    query = query_operand(
        query_ptr, query_scale_ptr, query_stride, query_scale_stride, num_rows, QUERIES, NUM_HEADS, NUM_GROUPS
    )
    weights = chain_weights(weight_ptr, weight_stride, num_rows, QUERIES, NUM_HEADS)
    first, last = tl.max(sequence, 0), tl.max(sequence, 0)
    if QUERIES > 1:
        first = tl.min(tl.where(real, sequence, 1 << 30), 0)
    for current in range(first, last + 1):
        shown = tl.where(sequence == current, visible, 0)
        limit = tl.minimum(tl.max(shown, 0), width)
        written = (sequence == current) & real
        num_tiles = tl.cdiv(limit, TILE)
        table = table_ptr + tl.maximum(current, 0).to(tl.int64) * table_stride
        candidates = candidates_ptr + tl.max(row, 0) * candidates_stride
        tile, each = tl.program_id(1), tl.num_programs(1)
        if AHEAD:
            final = tl.maximum(num_tiles - 1, 0)
            any_tile = num_tiles > 0
            start = tl.minimum(tile, final) * TILE
            places = tile_places(start, candidates, num_candidates, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
            block = place_blocks(places, table, num_blocks, any_tile, BLOCK_ROWS)
            offset = tile_offsets(start, places, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
            next_words, next_scales = load_keys(keys_ptr, block, offset, block_stride, BLOCK_ROWS, NUM_GROUPS, AHEAD)
            start = tl.minimum(tile + each, final) * TILE
            places = tile_places(start, candidates, num_candidates, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
            block = place_blocks(places, table, num_blocks, any_tile, BLOCK_ROWS)
            later = tl.minimum(tile + 2 * each, final) * TILE
            later_places = tile_places(later, candidates, num_candidates, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
        for tile in tl.range(tl.program_id(1), num_tiles, tl.num_programs(1), num_stages=STAGES):
            if AHEAD:
                words, scales = next_words, next_scales
                offset = tile_offsets(start, places, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
                next_words, next_scales = load_keys(
                    keys_ptr, block, offset, block_stride, BLOCK_ROWS, NUM_GROUPS, AHEAD
                )
                start, places = later, later_places
                block = place_blocks(places, table, num_blocks, any_tile, BLOCK_ROWS)
                later = tl.minimum(tile + 3 * each, final) * TILE
                later_places = tile_places(later, candidates, num_candidates, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
            else:
                places = tile_places(tile * TILE, candidates, num_candidates, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
                block = place_blocks(places, table, num_blocks, True, BLOCK_ROWS)
                offset = tile_offsets(tile * TILE, places, TILE, WARPS, BLOCK_ROWS, CANDIDATE_SIZE)
                words, scales = load_keys(keys_ptr, block, offset, block_stride, BLOCK_ROWS, NUM_GROUPS, AHEAD)
            column = tile * TILE + tl.arange(0, TILE)
            if CANDIDATE_SIZE == 0:
                seen = column[:, None] < shown[None, :]
            else:
                chosen = candidate_entry(column, candidates, num_candidates, CANDIDATE_SIZE)
                seen = (chosen >= 0)[:, None] & (chosen[:, None] < shown[None, :])
            keys = key_operand(words, scales, TILE, WARPS, NUM_GROUPS)
            scores = _sum_heads(_product(keys, query), weights, TILE, QUERIES)
            scores = tl.where(seen, scores, float("-inf"))
            _store(scores_ptr + row * scores_stride + tile * TILE, scores, written, width - tile * TILE, TILE)
            if NUM_MAXIMA >= 1:
                best = tl.max(tl.reshape(scores, [TILE // 8, 8, QUERIES]), 1)
                count = tl.cdiv(width, 8) - tile * (TILE // 8)
                target = maxima_ptr + row * maxima_stride
                _store(target + tile * (TILE // 8), best, written, count, TILE // 8)
                if NUM_MAXIMA >= 2:
                    best = tl.max(tl.reshape(best, [TILE // 64, 8, QUERIES]), 1)
                    count = tl.cdiv(width, 64) - tile * (TILE // 64)
                    _store(target + second_maxima + tile * (TILE // 64), best, written, count, TILE // 64)
        if FILL:
            done = tl.cdiv(tl.maximum(num_tiles - tl.program_id(1), 0), tl.num_programs(1)) * tl.num_programs(1)
            nothing = tl.full([TILE, QUERIES], float("-inf"), tl.float32)
            for tile in range(tl.program_id(1) + done, tl.cdiv(width, TILE), tl.num_programs(1)):
                _store(scores_ptr + row * scores_stride + tile * TILE, nothing, written, width - tile * TILE, TILE)


@triton.jit
def _store(target, values, written, count, LENGTH: tl.constexpr):
    """Store ``values [LENGTH, QUERIES]`` behind the address of each row."""
    column = tl.arange(0, LENGTH)[:, None]
    inside = (column < count) & written[None, :]
    tl.store(target[None, :] + column, rounded(values, target.dtype.element_ty), mask=inside)


@triton.jit
def _product(keys, query):
    """Dot products in float32; the interpreter multiplies the bit patterns of bfloat16 numbers, so it gets float32."""
    if INTERPRETED:
        return tl.dot(keys.to(tl.float32), query.to(tl.float32))
    return tl.dot(keys, query)


@triton.jit
def _sum_heads(dots, weights, TILE: tl.constexpr, QUERIES: tl.constexpr):
    """``dots [TILE, QUERIES * 32]`` in the order of ``index_operands`` -> scores ``[TILE, QUERIES]``, rounded."""
    CHAINS: tl.constexpr = QUERIES  # of one lane
    if QUERIES == 1:
        steps = tl.permute(tl.reshape(dots, [TILE, 2, 2, 4, 2]), (0, 3, 1, 2, 4))
    else:
        steps = tl.permute(tl.reshape(dots, [TILE, 2, 2, 2, 2, 4, 2]), (0, 5, 4, 6, 1, 2, 3))
    even, odd = tl.split(tl.reshape(steps, [TILE, 4, CHAINS, 2, 2, 2]))
    step_04, step_26 = tl.split(even)
    step_15, step_37 = tl.split(odd)
    step_0, step_4 = tl.split(step_04)
    step_2, step_6 = tl.split(step_26)
    step_1, step_5 = tl.split(step_15)
    step_3, step_7 = tl.split(step_37)
    chain = tl.zeros([TILE, 4, CHAINS], tl.bfloat16)
    chain = _chain_step(step_0, weights[0], chain)
    chain = _chain_step(step_1, weights[1], chain)
    chain = _chain_step(step_2, weights[2], chain)
    chain = _chain_step(step_3, weights[3], chain)
    chain = _chain_step(step_4, weights[4], chain)
    chain = _chain_step(step_5, weights[5], chain)
    chain = _chain_step(step_6, weights[6], chain)
    chain = _chain_step(step_7, weights[7], chain)
    chains = tl.reshape(chain.to(tl.float32), [TILE, QUERIES, 2, 2])
    pairs = rounded(tl.reduce(chains, 2, _plus), tl.bfloat16).to(tl.float32)
    total = rounded(tl.reduce(pairs, 2, _plus), tl.bfloat16).to(tl.float32)
    return total + 0.0


@triton.jit
def _plus(a, b):
    return a + b


@triton.jit
def _chain_step(dot, weight, chain):
    """``chain + weight * relu(dot)``, the dot product and the sum rounded to bfloat16."""
    weight = tl.broadcast_to(weight, chain.shape)
    if INTERPRETED:
        positive = rounded(tl.maximum(dot, 0.0), tl.bfloat16).to(tl.float32)
        return rounded(positive * weight.to(tl.float32) + chain.to(tl.float32), tl.bfloat16)
    return tl.inline_asm_elementwise(_STEP, "=r,r,r,r,r", [dot, weight, chain], dtype=tl.bfloat16, is_pure=True, pack=2)
