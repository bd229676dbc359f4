"""Joins what several programs found for parts of a row's keys: one program for a head of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded
from deepinfer_cuda.kernels.online_softmax import share


@triton.jit(do_not_specialize=["num_parts"])
def merge_parts_kernel(
    values_ptr,
    maxima_ptr,
    totals_ptr,
    result_ptr,
    num_parts,
    NUM_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Weigh parts ``[row, part, head, channel]`` by their maxima and totals ``[row, part, head]``."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.arange(0, PARTS)
    inside = part < num_parts
    place = (row * num_parts + part) * NUM_HEADS + head
    maximum = tl.load(maxima_ptr + place, mask=inside, other=-float("inf"))
    total = tl.load(totals_ptr + place, mask=inside, other=0.0)
    channel = tl.arange(0, CHANNELS)
    values = tl.load(values_ptr + place[:, None] * CHANNELS + channel[None, :], mask=inside[:, None], other=0.0)
    factor = tl.exp2(maximum - tl.max(maximum, 0))
    result = tl.sum(values * factor[:, None], 0) * share(tl.sum(total * factor, 0))
    tl.store(result_ptr + (row * NUM_HEADS + head) * CHANNELS + channel, rounded(result, result_ptr.dtype.element_ty))
