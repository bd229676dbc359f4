"""First maps of the experts: gate and up, SwiGLU with clamp, routing weight, rounding of the inner row."""

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
from deepinfer_cuda.kernels.number_formats import INTERPRETED, mxfp8_scale, power_of_two, round_to_e4m3, rounded
from deepinfer_cuda.kernels.swiglu import swiglu


@triton.jit
def expert_gate_up_kernel(
    x_ptr, order_ptr, tiles_ptr, weights_ptr, inner_ptr,
    words_ptr, scales_ptr, factors_ptr, shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
    limit, num_rows, num_pairs, num_tiles, x_row_stride, inner_row_stride,
    SLOTS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    HAS_LIMIT: tl.constexpr, ROUND_INNER: tl.constexpr, QUANTIZE_INNER: tl.constexpr,
    FIRST_M: tl.constexpr, TAILS: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program makes ``BLOCK_N`` channels of the inner rows of one tile; the tiles of the shared expert come first.

    A tile has ``FIRST_M`` rows and a tail: the shortest of ``TAILS`` that its rows need, or the last (shared expert).

    Inner rows lie in the order of the pairs, those of the shared expert behind them.
    """
    LAST: tl.constexpr = len(TAILS) - 1
    BLOCK_M: tl.constexpr = FIRST_M + TAILS[LAST]
    program = tl.program_id(0)
    shared_programs = num_shared_programs(num_rows, SHARED_INNER, BLOCK_M, BLOCK_N)
    if SHARED_INNER == 0:
        is_shared: tl.constexpr = False
    else:
        is_shared = program < shared_programs
    if is_shared:
        begin, end, block = shared_tile(program, num_rows, SHARED_INNER, BLOCK_M, BLOCK_N, GROUP)
        _make_inner(
            x_ptr, None, None, inner_ptr + tl.cast(num_pairs, tl.int64) * inner_row_stride,
            shared_words_ptr, shared_scales_ptr, shared_factor_ptr,
            begin, end, block, limit, x_row_stride, inner_row_stride,
            SLOTS, HIDDEN, SHARED_INNER, "fp8_block32", HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER,
            FIRST_M, TAILS[LAST], BLOCK_N, PARTS,
        )  # fmt: skip
    else:
        expert, begin, end, block = expert_tile(tiles_ptr, program - shared_programs, num_tiles, INNER, BLOCK_N, GROUP)
        if expert >= 0:
            matrix = expert.to(tl.int64) * (2 * tl.cdiv(INNER, TILE_ROWS) * tl.cdiv(HIDDEN, STEP))
            for number in tl.static_range(LAST + 1):
                if has_tail(end - begin, number, FIRST_M, TAILS):
                    _make_inner(
                        x_ptr, order_ptr, weights_ptr, inner_ptr,
                        words_ptr + matrix * TILE_WORDS, scales_ptr + matrix * TILE_ROWS, factors_ptr + expert,
                        begin, end, block, limit, x_row_stride, inner_row_stride,
                        SLOTS, HIDDEN, INNER, "mxfp4", HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER,
                        FIRST_M, TAILS[number], BLOCK_N, PARTS,
                    )  # fmt: skip


@triton.jit
def _make_inner(
    x_ptr, order_ptr, weights_ptr, inner_ptr, words_ptr, scales_ptr, factor_ptr,
    begin, end, block, limit, x_row_stride, inner_row_stride,
    SLOTS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr,
    HAS_LIMIT: tl.constexpr, ROUND_INNER: tl.constexpr, QUANTIZE_INNER: tl.constexpr,
    FIRST_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Inner rows of one tile: of pairs in their order, or where there is no order of rows."""
    gate, up, tail_gate, tail_up = _gate_and_up(
        x_ptr, order_ptr, begin, end, words_ptr, scales_ptr, block, x_row_stride,
        SLOTS, HIDDEN, INNER, FORMAT, FIRST_M, TAIL, BLOCK_N, PARTS,
    )  # fmt: skip
    factor = tl.load(factor_ptr)
    _store_inner(
        inner_ptr, weights_ptr, gate * factor, up * factor, begin, end, block, limit, inner_row_stride,
        INNER, HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER, FIRST_M, BLOCK_N,
    )  # fmt: skip
    if TAIL > 0:
        _store_inner(
            inner_ptr, weights_ptr, tail_gate * factor, tail_up * factor, begin + FIRST_M, end, block, limit,
            inner_row_stride, INNER, HAS_LIMIT, ROUND_INNER, QUANTIZE_INNER, TAIL, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _row_ptrs(x_ptr, order_ptr, begin, end, x_row_stride, SLOTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Where the rows of a tile begin, ``[1, BLOCK_M]``."""
    _, _, row = places(begin, end, BLOCK_M)
    if order_ptr is not None:
        row = (tl.load(order_ptr + row) // SLOTS).to(tl.int64)
    return (x_ptr + row * x_row_stride)[None, :]


@triton.jit
def _gate_and_up(
    x_ptr, order_ptr, begin, end, words_ptr, scales_ptr, block, x_row_stride,
    SLOTS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr,
    FIRST_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Both products of a block of inner channels, float32.

    Returns:
        Gate and up, ``[BLOCK_N, FIRST_M]``, and those of the tail, ``[BLOCK_N, TAIL]``.
    """
    STEPS: tl.constexpr = (HIDDEN + STEP - 1) // STEP
    TILES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    UP: tl.constexpr = (INNER + TILE_ROWS - 1) // TILE_ROWS * STEPS
    WIDTH: tl.constexpr = STEP // PARTS
    TAIL_M: tl.constexpr = TAIL if TAIL > 0 else 16
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = channel // TILE_ROWS * STEPS
    words = (words_ptr + tile * (TILES * TILE_WORDS) + channel % TILE_ROWS * ROW_WORDS)[:, None]
    words += tl.arange(0, ROW_WORDS)[None, :]
    scales = scales_ptr + tile * TILE_ROWS + channel % TILE_ROWS
    column = tl.arange(0, WIDTH)[:, None]
    x_ptrs = _row_ptrs(x_ptr, order_ptr, begin, end, x_row_stride, SLOTS, FIRST_M) + column
    gate = tl.zeros((BLOCK_N, FIRST_M), tl.float32)
    up = tl.zeros((BLOCK_N, FIRST_M), tl.float32)
    if TAIL > 0:
        tail_ptrs = _row_ptrs(x_ptr, order_ptr, begin + FIRST_M, end, x_row_stride, SLOTS, TAIL_M) + column
    tail_gate = tl.zeros((BLOCK_N, TAIL_M), tl.float32)
    tail_up = tl.zeros((BLOCK_N, TAIL_M), tl.float32)
    for step in range(STEPS):
        gate_first, gate_last, gate_factors = step_words(words, scales, FORMAT)
        up_first, up_last, up_factors = step_words(words + UP * TILES * TILE_WORDS, scales + UP * TILE_ROWS, FORMAT)
        for part in tl.static_range(PARTS):
            left = HIDDEN - step * STEP - part * WIDTH
            x = channels(x_ptrs + part * WIDTH, column, left, STEPS * STEP == HIDDEN)
            gate_weights = weight_part(gate_first, gate_last, gate_factors, FORMAT, part, PARTS)
            gate = product(gate_weights, x, gate)
            up_weights = weight_part(up_first, up_last, up_factors, FORMAT, part, PARTS)
            if TAIL > 0:
                tail_x = channels(tail_ptrs + part * WIDTH, column, left, STEPS * STEP == HIDDEN)
                tail_gate = product(gate_weights, tail_x, tail_gate)
                up = product(up_weights, x, up)
                tail_up = product(up_weights, tail_x, tail_up)
            else:
                up = product(up_weights, x, up)
        x_ptrs += STEP
        if TAIL > 0:
            tail_ptrs += STEP
        words += TILES * TILE_WORDS
        scales += TILE_ROWS
    return gate, up, tail_gate, tail_up


@triton.jit
def _store_inner(
    inner_ptr, weights_ptr, gate, up, begin, end, block, limit, inner_row_stride,
    INNER: tl.constexpr, HAS_LIMIT: tl.constexpr, ROUND_INNER: tl.constexpr, QUANTIZE_INNER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Products to inner rows."""
    place, inside, _ = places(begin, end, BLOCK_M)
    gate, up = _both_rounded(gate, up)
    inner = swiglu(gate, up, limit, HAS_LIMIT)
    if weights_ptr is not None:
        inner *= tl.load(weights_ptr + place, mask=inside, other=0.0)[None, :]
    if ROUND_INNER:
        inner = rounded(inner, tl.bfloat16).to(tl.float32)
    if QUANTIZE_INNER:
        inner = _through_mxfp8(inner, BLOCK_M, BLOCK_N)
    channel = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    tl.store(
        inner_ptr + place[None, :] * inner_row_stride + channel, rounded(inner, tl.bfloat16),
        mask=inside[None, :] & (channel < INNER),
    )  # fmt: skip


@triton.jit
def _both_rounded(gate, up):
    """Numbers rounded to bf16, as float32. In between two share a register: large tiles have none left over."""
    if INTERPRETED:
        gate, up = rounded(gate, tl.bfloat16).to(tl.float32), rounded(up, tl.bfloat16).to(tl.float32)
    else:
        both = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [gate, up], dtype=tl.int32, is_pure=True, pack=1
        )
        gate = (both << 16).to(tl.float32, bitcast=True)
        up = (both & -65536).to(tl.float32, bitcast=True)
    return gate, up


@triton.jit
def _through_mxfp8(x, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What is left of numbers ``[channels, rows]`` when they are stored as MXFP8; NaN stays NaN."""
    groups = tl.reshape(x, (BLOCK_N // 32, 32, BLOCK_M))
    scale, factor = mxfp8_scale(tl.max(tl.abs(groups), 1, keep_dims=True))
    values = round_to_e4m3(groups * factor).to(tl.float32) * power_of_two(scale)
    return tl.reshape(tl.where(groups == groups, values, groups), (BLOCK_N, BLOCK_M))
