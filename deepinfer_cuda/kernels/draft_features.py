"""The mean of a token's residual streams."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def draft_features_kernel(
    streams_ptr, result_ptr, token_stride, stream_stride,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for stream in tl.static_range(STREAMS):
        x = tl.load(streams_ptr + token * token_stride + stream * stream_stride + column, mask=inside, other=0.0)
        total += x.to(tl.float32)
    mean = rounded(total / STREAMS, result_ptr.dtype.element_ty)
    tl.store(result_ptr + token * WIDTH + column, mean, mask=inside)
