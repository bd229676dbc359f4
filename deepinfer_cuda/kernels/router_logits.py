"""Router logits: bfloat16 rows times a bfloat16 map, float32 sums."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.expert_weights import product


@triton.jit
def router_logits_kernel(
    x_ptr, router_ptr, logits_ptr, num_rows, x_row_stride, part_stride,
    EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, PIECES: tl.constexpr, STEPS_PER_PART: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program makes the logits of ``BLOCK_M`` rows for ``BLOCK_N`` experts.

    Each step of ``BLOCK_K`` channels is summed by the tensor core, whose additions cut off, and added to its part in
    float32; then parts are added in order. With ``SPLIT`` a program makes one part and the reader adds: the same bits.

    Args:
        x_ptr: ``[T, H]`` bf16.
        router_ptr: ``[PIECES, E, H]`` bf16: a float32 map is three pieces.
        logits_ptr: ``[parts, T, E]`` or ``[T, E]`` float32.
        num_rows: ``T``.
        x_row_stride: Elements between rows.
        part_stride: Elements between parts.
        EXPERTS: ``E``.
        HIDDEN: ``H``.
        PIECES: 1 or 3.
        STEPS_PER_PART: Steps that are summed before parts are.
        SPLIT: One program for each part.
        BLOCK_M: Rows of a tile.
        BLOCK_N: Experts of a tile.
        BLOCK_K: Channels of a step.
    """
    STEPS: tl.constexpr = (HIDDEN + BLOCK_K - 1) // BLOCK_K
    LOOP: tl.constexpr = STEPS_PER_PART if SPLIT else STEPS
    first = tl.program_id(2) * STEPS_PER_PART
    expert = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = first * BLOCK_K + tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + row[None, :] * x_row_stride + column[:, None]
    router_ptrs = router_ptr + expert[:, None] * HIDDEN + column[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(LOOP):
        within = column < HIDDEN - step * BLOCK_K
        x = tl.load(x_ptrs + step * BLOCK_K, mask=within[:, None] & (row < num_rows)[None, :], other=0.0)
        for piece in tl.static_range(PIECES):
            pointer = router_ptrs + piece * EXPERTS * HIDDEN + step * BLOCK_K
            router = tl.load(pointer, mask=within[None, :] & (expert < EXPERTS)[:, None], other=0.0)
            part += product(router, x, tl.zeros((BLOCK_N, BLOCK_M), tl.float32))
        if not SPLIT:
            is_last = (step % STEPS_PER_PART == STEPS_PER_PART - 1) | (step == STEPS - 1)
            total += tl.where(is_last, part, 0.0)
            part = tl.where(is_last, 0.0, part)
    result = part if SPLIT else total
    pointer = logits_ptr + tl.program_id(2) * part_stride + row[None, :] * EXPERTS + expert[:, None]
    tl.store(pointer, result, mask=(row < num_rows)[None, :] & (expert < EXPERTS)[:, None])
