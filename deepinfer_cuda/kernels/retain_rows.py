"""Streams and mixes of listed rows, a part of one row for a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def retain_rows_kernel(
    streams_ptr,
    mix_ptr,
    rows_ptr,
    kept_streams_ptr,
    kept_mix_ptr,
    streams_stride,
    mix_stride,
    width,
    STREAMS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program ``(r, c)``: columns ``c * BLOCK ..`` of all streams of listed row ``r``; the first also its mix."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(streams_ptr + row * streams_stride + column, mask=inside)
    tl.store(kept_streams_ptr + place * width + column, values, mask=inside)
    if tl.program_id(1) == 0:
        stream = tl.arange(0, PADDED)
        factors = tl.load(mix_ptr + row * mix_stride + stream, mask=stream < STREAMS)
        tl.store(kept_mix_ptr + place * STREAMS + stream, factors, mask=stream < STREAMS)
