"""The start of the streams: copies of each row, and the mix that picks the first."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def expand_streams_kernel(
    x_ptr,
    streams_ptr,
    mix_ptr,
    x_stride,
    width,
    STREAMS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program ``(t, c)``: columns ``c * BLOCK ..`` of row ``t``; ``PADDED``: power of two that holds the streams."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=inside)
    for stream in tl.static_range(STREAMS):
        tl.store(streams_ptr + (row * STREAMS + stream) * width + column, x, mask=inside)
    if tl.program_id(1) == 0:
        index = tl.arange(0, PADDED)
        tl.store(mix_ptr + row * STREAMS + index, (index == 0).to(tl.float32), mask=index < STREAMS)
