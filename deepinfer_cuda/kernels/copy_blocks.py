"""Whole blocks of a pool onto others."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_blocks_kernel(pool_ptr, pairs_ptr, block_bytes, block_stride, CHUNK: tl.constexpr):
    pair = pairs_ptr + tl.program_id(1) * 2
    source = tl.load(pair).to(tl.int64)
    destination = tl.load(pair + 1).to(tl.int64)
    byte = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = (byte < block_bytes) & (destination != 0)
    content = tl.load(pool_ptr + source * block_stride + byte, mask=inside)
    tl.store(pool_ptr + destination * block_stride + byte, content, mask=inside)
