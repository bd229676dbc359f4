"""A token drawn by integer weights, for every kernel that draws."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_block(block_sums, target, BLOCKS: tl.constexpr):
    """The first block of a row at whose end the cumulative weight exceeds ``target``, and the weight before it."""
    block = tl.sum((tl.cumsum(block_sums, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(tl.arange(0, BLOCKS) < block, block_sums, 0), 0)
    return block, before


@triton.jit
def token_in_block(weights, block, before, target, BLOCK: tl.constexpr):
    """The first token of a block whose cumulative weight exceeds ``target``."""
    return block * BLOCK + tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
