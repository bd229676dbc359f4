"""First maps of the experts: gate and up, SwiGLU with clamp, routing weight, rounding of the inner row."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.expert_tiles import expert_tile, num_shared_programs, places, shared_tile
from deepinfer_cuda.kernels.expert_weights import ROW_WORDS, STEP, TILE_ROWS, TILE_WORDS, product, weight_step
from deepinfer_cuda.kernels.number_formats import mxfp8_scale, power_of_two, round_to_e4m3, rounded
from deepinfer_cuda.kernels.swiglu import swiglu


@triton.jit
def expert_gate_up_kernel(
    x_ptr, order_ptr, tiles_ptr, weights_ptr, inner_ptr,
    words_ptr, scales_ptr, factors_ptr, shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
    limit, num_rows, num_pairs, num_tiles, x_row_stride, weights_row_stride, inner_row_stride,
    SLOTS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    HAS_LIMIT: tl.constexpr, ROUND_INNER: tl.constexpr, QUANTIZE_INNER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program makes ``BLOCK_N`` channels of the inner rows of one tile; the tiles of the shared expert come first.

    Inner rows lie in the order of the pairs, those of the shared expert behind them.
    """
    program = tl.program_id(0)
    shared_programs = num_shared_programs(num_rows, SHARED_INNER, BLOCK_M, BLOCK_N)
    if SHARED_INNER == 0:
        is_shared: tl.constexpr = False
    else:
        is_shared = program < shared_programs
    if is_shared:
        begin, end, block = shared_tile(program, num_rows, SHARED_INNER, BLOCK_M, BLOCK_N, GROUP)
        row, inside = places(begin, end, BLOCK_M)
        gate, up = _gate_and_up(
            x_ptr + row * x_row_stride, inside, shared_words_ptr, shared_scales_ptr, block,
            HIDDEN, SHARED_INNER, "fp8_block32", BLOCK_M, BLOCK_N,
        )  # fmt: skip
        factor = tl.load(shared_factor_ptr)
        weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        _store_inner(
            inner_ptr, num_pairs + row, inside, gate * factor, up * factor, weight, block, limit, inner_row_stride,
            SHARED_INNER, HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        expert, begin, end, block = expert_tile(tiles_ptr, program - shared_programs, num_tiles, INNER, BLOCK_N, GROUP)
        if expert >= 0:
            inner_row, inside = places(begin, end, BLOCK_M)
            pair = tl.load(order_ptr + inner_row, mask=inside, other=0)
            row = (pair // SLOTS).to(tl.int64)
            weight = tl.load(weights_ptr + row * weights_row_stride + pair % SLOTS, mask=inside, other=0.0)
            matrix = expert.to(tl.int64) * (2 * tl.cdiv(INNER, TILE_ROWS) * tl.cdiv(HIDDEN, STEP))
            gate, up = _gate_and_up(
                x_ptr + row * x_row_stride, inside, words_ptr + matrix * TILE_WORDS, scales_ptr + matrix * TILE_ROWS,
                block, HIDDEN, INNER, "mxfp4", BLOCK_M, BLOCK_N,
            )  # fmt: skip
            factor = tl.load(factors_ptr + expert)
            _store_inner(
                inner_ptr, inner_row, inside, gate * factor, up * factor, weight, block, limit, inner_row_stride,
                INNER, HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER, BLOCK_M, BLOCK_N,
            )  # fmt: skip


@triton.jit
def _gate_and_up(
    row_ptrs, inside, words_ptr, scales_ptr, block,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Both products of a block of inner channels, ``[BLOCK_N, BLOCK_M]`` float32 each."""
    STEPS: tl.constexpr = (HIDDEN + STEP - 1) // STEP
    TILES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    UP: tl.constexpr = (INNER + TILE_ROWS - 1) // TILE_ROWS * STEPS
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = channel // TILE_ROWS * STEPS
    words = (words_ptr + tile * (TILES * TILE_WORDS) + channel % TILE_ROWS * ROW_WORDS)[:, None]
    words += tl.arange(0, ROW_WORDS)[None, :]
    scales = scales_ptr + tile * TILE_ROWS + channel % TILE_ROWS
    column = tl.arange(0, STEP)[:, None]
    x_ptrs = row_ptrs[None, :] + column
    gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(STEPS):
        present = inside[None, :]
        if STEPS * STEP != HIDDEN:
            present = present & (column < HIDDEN - step * STEP)
        x = tl.load(x_ptrs, mask=present, other=0.0)
        gate = product(weight_step(words, scales, FORMAT), x, gate)
        up = product(weight_step(words + UP * TILES * TILE_WORDS, scales + UP * TILE_ROWS, FORMAT), x, up)
        x_ptrs += STEP
        words += TILES * TILE_WORDS
        scales += TILE_ROWS
    return gate, up


@triton.jit
def _store_inner(
    inner_ptr, inner_row, inside, gate, up, weight, block, limit, inner_row_stride,
    INNER: tl.constexpr, HAS_LIMIT: tl.constexpr, ROUND_INNER: tl.constexpr, QUANTIZE_INNER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Products to inner rows."""
    gate, up = rounded(gate, tl.bfloat16).to(tl.float32), rounded(up, tl.bfloat16).to(tl.float32)
    inner = swiglu(gate, up, limit, HAS_LIMIT) * weight[None, :]
    if ROUND_INNER:
        inner = rounded(inner, tl.bfloat16).to(tl.float32)
    if QUANTIZE_INNER:
        inner = _through_mxfp8(inner, BLOCK_M, BLOCK_N)
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    tl.store(
        inner_ptr + inner_row[None, :] * inner_row_stride + channel, rounded(inner, tl.bfloat16),
        mask=inside[None, :] & (channel < INNER),
    )  # fmt: skip


@triton.jit
def _through_mxfp8(x, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What is left of numbers ``[channels, rows]`` when they are stored as MXFP8; NaN stays NaN."""
    groups = tl.reshape(x, (BLOCK_N // 32, 32, BLOCK_M))
    scale, factor = mxfp8_scale(tl.max(tl.abs(groups), 1, keep_dims=True))
    values = round_to_e4m3(groups * factor).to(tl.float32) * power_of_two(scale)
    return tl.reshape(tl.where(groups == groups, values, groups), (BLOCK_N, BLOCK_M))
