"""Streams weighed by a mix and summed: the input of a sub-layer."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def collapse_streams_kernel(
    streams_ptr,
    mix_ptr,
    result_ptr,
    streams_stride,
    mix_stride,
    width,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program ``(t, c)``: columns ``c * BLOCK ..`` of row ``t``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(STREAMS):
        x = tl.load(streams_ptr + row * streams_stride + stream * width + column, mask=inside, other=0.0)
        total += tl.load(mix_ptr + row * mix_stride + stream) * x.to(tl.float32)
    tl.store(result_ptr + row * width + column, rounded(total, result_ptr.dtype.element_ty), mask=inside)
