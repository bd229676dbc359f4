"""A token drawn from the log-probabilities of each row."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.draw_token import find_block, token_in_block
from deepinfer_cuda.kernels.vocabulary_rows import fixed_point, random_words, uniform_below

DRAW_BITS = tl.constexpr(31)
"""As in ``deepinfer_core.ops.sampling.fixed_point``."""


@triton.jit
def _weights(row_ptr, block, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
    return fixed_point(tl.exp(x.to(tl.float64)), DRAW_BITS)


@triton.jit
def sample_kernel(
    logprobs_ptr, seeds_ptr, positions_ptr, result_ptr, row_stride, purpose,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One pass for the sums of blocks; then only the block that holds the token is looked at again."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logprobs_ptr + row * row_stride
    sums = tl.zeros((BLOCKS,), tl.int64)
    for block in tl.range(0, tl.cdiv(VOCAB, BLOCK), num_stages=STAGES):
        block_sum = tl.sum(_weights(row_ptr, block, VOCAB, BLOCK), 0)
        sums = tl.where(tl.arange(0, BLOCKS) == block, block_sum, sums)
    total = tl.sum(sums, 0)
    word_0, word_1 = random_words(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), purpose)
    target = uniform_below(total, word_0, word_1)
    block, before = find_block(sums, target, BLOCKS)
    token = token_in_block(_weights(row_ptr, block, VOCAB, BLOCK), block, before, target, BLOCK)
    tl.store(result_ptr + row, tl.where(total > 0, token, -1))
