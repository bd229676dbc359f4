"""Router logits: bfloat16 rows times a bfloat16 map, float32 sums."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.expert_weights import product


@triton.jit
def router_logits_kernel(
    x_ptr, router_ptr, logits_ptr, num_rows, x_row_stride, part_stride,
    EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program makes the logits of ``BLOCK_M`` rows for ``BLOCK_N`` experts.

    A step of ``BLOCK_K`` channels is summed by the tensor core, whose additions cut off; steps are added to their part
    in float32, and parts in order. A program may make one part and leave the last sum to the reader: the same bits.

    Args:
        x_ptr: ``[T, H]`` bf16.
        router_ptr: ``[PIECES, E, H]`` bf16: a float32 map is three pieces.
        logits_ptr: ``[third size of the grid, T, E]`` float32.
        num_rows: ``T``.
        x_row_stride: Elements between rows.
        part_stride: Elements between the logits of programs along the third axis of the grid.
        EXPERTS: ``E``.
        HIDDEN: ``H``.
        PIECES: 1 or 3.
        PARTS: Parts that a program makes.
        STEPS: Steps of a part.
        BLOCK_M: Rows of a tile.
        BLOCK_N: Experts of a tile.
        BLOCK_K: Channels of a step.
    """
    group = tl.program_id(2)
    expert = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = group * (PARTS * STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + row[None, :] * x_row_stride + column[:, None]
    router_ptrs = router_ptr + expert[:, None] * HIDDEN + column[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for part in range(PARTS):
        sum_of_part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for step in range(STEPS):
            offset = (part * STEPS + step) * BLOCK_K
            within = column < HIDDEN - offset
            x = tl.load(x_ptrs + offset, mask=within[:, None] & (row < num_rows)[None, :], other=0.0)
            for piece in tl.static_range(PIECES):
                pointer = router_ptrs + piece * EXPERTS * HIDDEN + offset
                router = tl.load(pointer, mask=within[None, :] & (expert < EXPERTS)[:, None], other=0.0)
                sum_of_part += product(router, x, tl.zeros((BLOCK_N, BLOCK_M), tl.float32))
        total += sum_of_part
    pointer = logits_ptr + group * part_stride + row[None, :] * EXPERTS + expert[:, None]
    tl.store(pointer, total, mask=(row < num_rows)[None, :] & (expert < EXPERTS)[:, None])
