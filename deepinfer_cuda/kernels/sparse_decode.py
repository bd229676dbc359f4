"""Sparse attention of decode rows over quantised caches: one program for a row or a part of its keys, all heads."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.cached_rows import load_scales, load_values, record_offsets, to_bfloat16
from deepinfer_cuda.kernels.number_formats import rounded
from deepinfer_cuda.kernels.online_softmax import begin, block_weights, load_slots, product, share, used_blocks


@triton.jit
def attend_blocks(
    state,
    query,
    cache_ptr,
    slots_ptr,
    block_stride,
    first,
    last,
    scale_log2,
    FORMAT: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Take blocks ``first .. last - 1`` of the keys of one cache into the state of a row.

    The branches are always taken; :mod:`deepinfer_cuda.kernels.sparse_prefill` says why they are there.
    """
    RECORD: tl.constexpr = CHANNELS + CHANNELS // 32 if FORMAT == "mxfp8" else CHANNELS // 2 + CHANNELS // 16
    maximum, totals, values = state
    for block in tl.range(first, last, num_stages=STAGES, disable_licm=True):
        column = block * KEYS + tl.arange(0, KEYS)
        if NUM_SLOTS % KEYS == 0:
            slots = tl.load(slots_ptr + column)
        else:
            slots = tl.load(slots_ptr + column, mask=column < NUM_SLOTS, other=-1)
        exists = slots >= 0
        rows = cache_ptr + record_offsets(slots, block_stride, ROWS, RECORD)
        scales = load_scales(rows, exists, FORMAT, CHANNELS)
        pairs = load_values(rows, exists, FORMAT, CHANNELS)
        if block < last:
            keys = to_bfloat16(pairs, scales, FORMAT)
            weights = tl.zeros((query.shape[0], KEYS), tl.bfloat16)
            factor = tl.zeros((query.shape[0],), tl.float32)
            if block + 1 <= last:
                dots = product(query, tl.trans(keys), tl.zeros((query.shape[0], KEYS), tl.float32))
                weights, maximum, totals, factor = block_weights(dots, exists, maximum, totals, scale_log2)
            values = product(weights, keys, values * factor[:, None])
    return maximum, totals, values


@triton.jit(do_not_specialize=["part_blocks"])
def sparse_decode_kernel(
    query_ptr,
    window_ptr,
    window_slots_ptr,
    context_ptr,
    context_slots_ptr,
    sink_ptr,
    result_ptr,
    maxima_ptr,
    totals_ptr,
    query_stride,
    window_stride,
    context_stride,
    scale_log2,
    part_blocks,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr,
    WINDOW_ROWS: tl.constexpr,
    CONTEXT: tl.constexpr,
    CONTEXT_ROWS: tl.constexpr,
    CONTEXT_FORMAT: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attend to ``part_blocks`` blocks of the keys of a row, which are numbered through: window, then context.

    A single part gives the result. Of several, each leaves its sum of values with maximum and total, for
    ``merge_parts_kernel``; the sink counts in the first one.
    """
    WINDOW_BLOCKS: tl.constexpr = (WINDOW + KEYS - 1) // KEYS
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    part = tl.program_id(2)
    inside = (head < NUM_HEADS)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    if CONTEXT > 0:
        context_slots_ptr += row * CONTEXT
        context_slots = load_slots(context_slots_ptr, CONTEXT)
    at = query_ptr + row * query_stride + head[:, None] * CHANNELS + channel
    query = tl.load(at, mask=inside, other=0.0)
    maximum, totals = begin(sink_ptr, head, NUM_HEADS, KEYS)
    state = (maximum, tl.where(part == 0, totals, 0.0), tl.zeros((HEADS, CHANNELS), tl.float32))
    first = part * part_blocks
    last = first + part_blocks
    state = attend_blocks(
        state, query, window_ptr, window_slots_ptr + row * WINDOW, window_stride, first,
        tl.minimum(last, WINDOW_BLOCKS), scale_log2, "mxfp8", WINDOW, KEYS, CHANNELS, WINDOW_ROWS, STAGES,
    )  # fmt: skip
    if CONTEXT > 0:
        state = attend_blocks(
            state, query, context_ptr, context_slots_ptr, context_stride, tl.maximum(first - WINDOW_BLOCKS, 0),
            tl.minimum(last - WINDOW_BLOCKS, used_blocks(context_slots, KEYS)), scale_log2,
            CONTEXT_FORMAT, CONTEXT, KEYS, CHANNELS, CONTEXT_ROWS, STAGES,
        )  # fmt: skip
    maximum, totals, values = state
    total = tl.sum(totals, 1)
    place = (row * tl.num_programs(2) + part) * NUM_HEADS + head
    if tl.num_programs(2) == 1:
        values *= share(total)[:, None]
    else:
        tl.store(maxima_ptr + place, maximum, mask=head < NUM_HEADS)
        tl.store(totals_ptr + place, total, mask=head < NUM_HEADS)
    at = result_ptr + place[:, None] * CHANNELS + channel
    tl.store(at, rounded(values, result_ptr.dtype.element_ty), mask=inside)
