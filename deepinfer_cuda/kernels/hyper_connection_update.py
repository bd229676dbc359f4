"""A sub-layer's output put back into the streams."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def hyper_connection_update_kernel(
    output_ptr,
    streams_ptr,
    post_ptr,
    combination_ptr,
    result_ptr,
    output_stride,
    streams_stride,
    post_stride,
    combination_stride,
    width,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program ``(t, c)``: columns ``c * BLOCK ..`` of all streams of row ``t``.

    Args:
        output_ptr: ``[T, width]``.
        streams_ptr: ``[T, STREAMS, width]``, dense within a row.
        post_ptr: ``[T, STREAMS]`` float32.
        combination_ptr: ``[T, input, output]`` float32, dense within a row.
        result_ptr: ``[T, STREAMS, width]``.
        output_stride: Distance of rows in elements, as the other strides.
        streams_stride: See there.
        post_stride: See there.
        combination_stride: See there.
        width: Channels.
        STREAMS: Streams.
        BLOCK: Columns of a program.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    streams, combination = streams_ptr + row * streams_stride, combination_ptr + row * combination_stride
    output = tl.load(output_ptr + row * output_stride + column, mask=inside, other=0.0).to(tl.float32)
    old = ()
    for stream in tl.static_range(STREAMS):
        x = tl.load(streams + stream * width + column, mask=inside, other=0.0)
        old += (x.to(tl.float32),)
    for target in tl.static_range(STREAMS):
        new = tl.load(post_ptr + row * post_stride + target) * output
        for source in tl.static_range(STREAMS):
            new += tl.load(combination + source * STREAMS + target) * old[source]
        address = result_ptr + row * (STREAMS * width) + target * width + column
        tl.store(address, rounded(new, result_ptr.dtype.element_ty), mask=inside)
