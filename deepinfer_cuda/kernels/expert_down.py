"""Second maps of the experts: inner rows to results, one rounding each."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.expert_tiles import expert_tile, has_tail, num_shared_programs, places, shared_tile
from deepinfer_cuda.kernels.expert_weights import (
    ROW_WORDS,
    STEP,
    TILE_ROWS,
    TILE_WORDS,
    channels,
    product,
    step_words,
    weight_part,
)
from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def expert_down_kernel(
    inner_ptr, order_ptr, tiles_ptr, result_ptr,
    words_ptr, scales_ptr, factors_ptr, shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
    num_rows, num_pairs, num_tiles, inner_row_stride, first_channel,
    HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    FIRST_M: tl.constexpr, TAILS: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program makes ``BLOCK_N`` channels of the results of one tile; the tiles of the shared expert come first.

    A tile has ``FIRST_M`` rows and a tail: the shortest of ``TAILS`` that its rows need, or the last (shared expert).

    Results lie pair by pair (row by row, slot by slot), those of the shared expert behind them: ``CHANNELS`` of each,
    from ``first_channel`` on, which is a multiple of ``BLOCK_N``.
    """
    LAST: tl.constexpr = len(TAILS) - 1
    BLOCK_M: tl.constexpr = FIRST_M + TAILS[LAST]
    program = tl.program_id(0)
    SHARED_CHANNELS: tl.constexpr = CHANNELS if SHARED_INNER else 0
    shared_programs = num_shared_programs(num_rows, SHARED_CHANNELS, BLOCK_M, BLOCK_N)
    if SHARED_INNER == 0:
        is_shared: tl.constexpr = False
    else:
        is_shared = program < shared_programs
    if is_shared:
        begin, end, block = shared_tile(program, num_rows, SHARED_CHANNELS, BLOCK_M, BLOCK_N, GROUP)
        _make_results(
            inner_ptr, None, result_ptr, shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
            num_pairs + begin, num_pairs + end, block, inner_row_stride, first_channel,
            CHANNELS, SHARED_INNER, "fp8_block32", FIRST_M, TAILS[LAST], BLOCK_N, PARTS,
        )  # fmt: skip
    else:
        expert, begin, end, block = expert_tile(
            tiles_ptr, program - shared_programs, num_tiles, CHANNELS, BLOCK_N, GROUP
        )
        if expert >= 0:
            matrix = expert.to(tl.int64) * (tl.cdiv(HIDDEN, TILE_ROWS) * tl.cdiv(INNER, STEP))
            for number in tl.static_range(LAST + 1):
                if has_tail(end - begin, number, FIRST_M, TAILS):
                    _make_results(
                        inner_ptr, order_ptr, result_ptr,
                        words_ptr + matrix * TILE_WORDS, scales_ptr + matrix * TILE_ROWS, factors_ptr + expert,
                        begin, end, block, inner_row_stride, first_channel,
                        CHANNELS, INNER, "mxfp4", FIRST_M, TAILS[number], BLOCK_N, PARTS,
                    )  # fmt: skip


@triton.jit
def _make_results(
    inner_ptr, order_ptr, result_ptr, words_ptr, scales_ptr, factor_ptr, begin, end, block,
    inner_row_stride, first_channel,
    CHANNELS: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr,
    FIRST_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Results of one tile. They go to their pairs' places, or where there is no order to those of the inner rows."""
    total, tail = _down(
        inner_ptr, begin, end, words_ptr, scales_ptr, first_channel + block * BLOCK_N, inner_row_stride,
        INNER, FORMAT, FIRST_M, TAIL, BLOCK_N, PARTS,
    )  # fmt: skip
    factor = tl.load(factor_ptr)
    _store_results(result_ptr, order_ptr, total * factor, begin, end, block, CHANNELS, FIRST_M, BLOCK_N)
    if TAIL > 0:
        _store_results(result_ptr, order_ptr, tail * factor, begin + FIRST_M, end, block, CHANNELS, TAIL, BLOCK_N)


@triton.jit
def _store_results(
    result_ptr, order_ptr, total, begin, end, block,
    CHANNELS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row, inside, _ = places(begin, end, BLOCK_M)
    if order_ptr is not None:
        row = tl.load(order_ptr + row, mask=inside, other=0).to(tl.int64)
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    tl.store(
        result_ptr + row[None, :] * CHANNELS + channel, rounded(total, tl.bfloat16),
        mask=inside[None, :] & (channel < CHANNELS),
    )  # fmt: skip


@triton.jit
def _down(
    inner_ptr, begin, end, words_ptr, scales_ptr, first_channel, inner_row_stride,
    INNER: tl.constexpr, FORMAT: tl.constexpr,
    FIRST_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The product of a block of result channels from the first one on, float32.

    Returns:
        ``[BLOCK_N, FIRST_M]``, and that of the tail, ``[BLOCK_N, TAIL]``.
    """
    STEPS: tl.constexpr = (INNER + STEP - 1) // STEP
    TILES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    WIDTH: tl.constexpr = STEP // PARTS
    TAIL_M: tl.constexpr = TAIL if TAIL > 0 else 16
    channel = first_channel + tl.arange(0, BLOCK_N)
    tile = channel // TILE_ROWS * STEPS
    words = (words_ptr + tile * (TILES * TILE_WORDS) + channel % TILE_ROWS * ROW_WORDS)[:, None]
    words += tl.arange(0, ROW_WORDS)[None, :]
    scales = scales_ptr + tile * TILE_ROWS + channel % TILE_ROWS
    column = tl.arange(0, WIDTH)[:, None]
    _, _, row = places(begin, end, FIRST_M)
    _, _, tail_row = places(begin + FIRST_M, end, TAIL_M)
    x_ptrs = inner_ptr + (row * inner_row_stride)[None, :] + column
    tail_ptrs = inner_ptr + (tail_row * inner_row_stride)[None, :] + column
    total = tl.zeros((BLOCK_N, FIRST_M), tl.float32)
    tail = tl.zeros((BLOCK_N, TAIL_M), tl.float32)
    for step in range(STEPS):
        first, last, factors = step_words(words, scales, FORMAT)
        for part in tl.static_range(PARTS):
            left = INNER - step * STEP - part * WIDTH
            weights = weight_part(first, last, factors, FORMAT, part, PARTS)
            x = channels(x_ptrs + part * WIDTH, column, left, STEPS * STEP == INNER)
            total = product(weights, x, total)
            if TAIL > 0:
                tail_x = channels(tail_ptrs + part * WIDTH, column, left, STEPS * STEP == INNER)
                tail = product(weights, tail_x, tail)
        x_ptrs += STEP
        if TAIL > 0:
            tail_ptrs += STEP
        words += TILES * TILE_WORDS
        scales += TILE_ROWS
    return total, tail
