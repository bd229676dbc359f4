"""Second maps of the experts: inner rows to results, one rounding each."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.expert_tiles import expert_tile, num_shared_programs, places, shared_tile
from deepinfer_cuda.kernels.expert_weights import ROW_WORDS, STEP, TILE_ROWS, TILE_WORDS, product, weight_step
from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def expert_down_kernel(
    inner_ptr, order_ptr, tiles_ptr, result_ptr,
    words_ptr, scales_ptr, factors_ptr, shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
    num_rows, num_pairs, num_tiles, inner_row_stride, first_channel,
    HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program makes ``BLOCK_N`` channels of the results of one tile; the tiles of the shared expert come first.

    Results lie pair by pair (row by row, slot by slot), those of the shared expert behind them: ``CHANNELS`` of each,
    from ``first_channel`` on, which is a multiple of ``BLOCK_N``.
    """
    program = tl.program_id(0)
    SHARED_CHANNELS: tl.constexpr = CHANNELS if SHARED_INNER else 0
    shared_programs = num_shared_programs(num_rows, SHARED_CHANNELS, BLOCK_M, BLOCK_N)
    if SHARED_INNER == 0:
        is_shared: tl.constexpr = False
    else:
        is_shared = program < shared_programs
    if is_shared:
        begin, end, block = shared_tile(program, num_rows, SHARED_CHANNELS, BLOCK_M, BLOCK_N, GROUP)
        row, inside = places(begin, end, BLOCK_M)
        total = _down(
            inner_ptr + (num_pairs + row) * inner_row_stride, inside, shared_words_ptr, shared_scales_ptr,
            first_channel + block * BLOCK_N, SHARED_INNER, "fp8_block32", BLOCK_M, BLOCK_N,
        )  # fmt: skip
        total *= tl.load(shared_factor_ptr)
        _store_result(result_ptr, num_pairs + row, inside, total, block, CHANNELS, BLOCK_N)
    else:
        expert, begin, end, block = expert_tile(
            tiles_ptr, program - shared_programs, num_tiles, CHANNELS, BLOCK_N, GROUP
        )
        if expert >= 0:
            inner_row, inside = places(begin, end, BLOCK_M)
            pair = tl.load(order_ptr + inner_row, mask=inside, other=0).to(tl.int64)
            matrix = expert.to(tl.int64) * (tl.cdiv(HIDDEN, TILE_ROWS) * tl.cdiv(INNER, STEP))
            total = _down(
                inner_ptr + inner_row * inner_row_stride, inside,
                words_ptr + matrix * TILE_WORDS, scales_ptr + matrix * TILE_ROWS,
                first_channel + block * BLOCK_N, INNER, "mxfp4", BLOCK_M, BLOCK_N,
            )  # fmt: skip
            total *= tl.load(factors_ptr + expert)
            _store_result(result_ptr, pair, inside, total, block, CHANNELS, BLOCK_N)


@triton.jit
def _store_result(result_ptr, row, inside, total, block, CHANNELS: tl.constexpr, BLOCK_N: tl.constexpr):
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    tl.store(
        result_ptr + row[None, :] * CHANNELS + channel, rounded(total, tl.bfloat16),
        mask=inside[None, :] & (channel < CHANNELS),
    )  # fmt: skip


@triton.jit
def _down(
    row_ptrs, inside, words_ptr, scales_ptr, first_channel,
    INNER: tl.constexpr, FORMAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The product of a block of result channels from the first one on, ``[BLOCK_N, BLOCK_M]`` float32."""
    STEPS: tl.constexpr = (INNER + STEP - 1) // STEP
    TILES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    channel = first_channel + tl.arange(0, BLOCK_N)
    tile = channel // TILE_ROWS * STEPS
    words = (words_ptr + tile * (TILES * TILE_WORDS) + channel % TILE_ROWS * ROW_WORDS)[:, None]
    words += tl.arange(0, ROW_WORDS)[None, :]
    scales = scales_ptr + tile * TILE_ROWS + channel % TILE_ROWS
    column = tl.arange(0, STEP)[:, None]
    x_ptrs = row_ptrs[None, :] + column
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(STEPS):
        present = inside[None, :]
        if STEPS * STEP != INNER:
            present = present & (column < INNER - step * STEP)
        x = tl.load(x_ptrs, mask=present, other=0.0)
        total = product(weight_step(words, scales, FORMAT), x, total)
        x_ptrs += STEP
        words += TILES * TILE_WORDS
        scales += TILE_ROWS
    return total
