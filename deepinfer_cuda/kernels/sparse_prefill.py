"""Sparse attention of prompt rows over gathered rows: one program for a row, all heads.

Two branches that are always taken steer Triton 3.6. The outer one makes its pipeline start the loads of the next
block before the products of this one (a branch is put behind the loads), not behind them. The inner one hides from the
product of queries and keys that another product follows: it then shares the keys among the warps instead of computing
every logit twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded
from deepinfer_cuda.kernels.online_softmax import begin, block_weights, load_slots, product, share, used_blocks


@triton.jit
def sparse_prefill_kernel(
    query_ptr,
    window_ptr,
    window_indices_ptr,
    context_ptr,
    context_indices_ptr,
    sink_ptr,
    result_ptr,
    query_stride,
    window_stride,
    context_stride,
    scale_log2,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr,
    CONTEXT: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    WINDOW_BLOCKS: tl.constexpr = (WINDOW + KEYS - 1) // KEYS
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    heads_inside = (head < NUM_HEADS)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    window_indices_ptr += row * WINDOW
    context_indices_ptr += row * CONTEXT
    if CONTEXT > 0:
        context_indices = load_slots(context_indices_ptr, CONTEXT)
    query = tl.load(query_ptr + row * query_stride + head[:, None] * CHANNELS + channel, mask=heads_inside, other=0.0)
    maximum, totals = begin(sink_ptr, head, NUM_HEADS, KEYS)
    values = tl.zeros((HEADS, CHANNELS), tl.float32)
    last = WINDOW_BLOCKS
    if CONTEXT > 0:
        last += used_blocks(context_indices, KEYS)
    for block in tl.range(0, last, num_stages=STAGES, disable_licm=True):
        in_window = block < WINDOW_BLOCKS
        column = tl.where(in_window, block, block - WINDOW_BLOCKS) * KEYS + tl.arange(0, KEYS)
        index_ptr = tl.where(in_window, window_indices_ptr, context_indices_ptr)
        if WINDOW % KEYS == 0 and CONTEXT % KEYS == 0:
            index = tl.load(index_ptr + column)
        else:
            index = tl.load(index_ptr + column, mask=column < tl.where(in_window, WINDOW, CONTEXT), other=-1)
        exists = index >= 0
        place = index.to(tl.int64) * tl.where(in_window, window_stride, context_stride)
        rows_ptr = tl.where(in_window, window_ptr, context_ptr)
        keys = tl.load(rows_ptr + place[:, None] + channel, mask=exists[:, None], other=0.0)
        if block < last:
            weights = tl.zeros((HEADS, KEYS), tl.bfloat16)
            factor = tl.zeros((HEADS,), tl.float32)
            if block + 1 <= last:
                dots = product(query, tl.trans(keys), tl.zeros((HEADS, KEYS), tl.float32))
                weights, maximum, totals, factor = block_weights(dots, exists, maximum, totals, scale_log2)
            values = product(weights, keys, values * factor[:, None])
    values = values * share(tl.sum(totals, 1))[:, None]
    at = result_ptr + (row * NUM_HEADS + head)[:, None] * CHANNELS + channel
    tl.store(at, rounded(values, result_ptr.dtype.element_ty), mask=heads_inside)
