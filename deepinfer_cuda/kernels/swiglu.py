"""SwiGLU of rows whose gate channels come first."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def swiglu(gate, up, limit, HAS_LIMIT: tl.constexpr):
    """``silu(gate) * up`` in float32, the gate clamped from above, the other from both sides; NaN stays NaN."""
    if HAS_LIMIT:
        gate = tl.minimum(gate, limit, tl.PropagateNan.ALL)
        up = tl.maximum(tl.minimum(up, limit, tl.PropagateNan.ALL), -limit, tl.PropagateNan.ALL)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def swiglu_kernel(
    gate_up_ptr, weight_ptr, result_ptr, limit, gate_up_row_stride, weight_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_LIMIT: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One program makes a part of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate_up = gate_up_ptr + row * gate_up_row_stride + column
    gate = tl.load(gate_up, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH, mask=inside, other=0.0).to(tl.float32)
    result = swiglu(gate, up, limit, HAS_LIMIT)
    if HAS_WEIGHT:
        result *= tl.load(weight_ptr + row * weight_stride).to(tl.float32)
    tl.store(result_ptr + row * WIDTH + column, rounded(result, result_ptr.dtype.element_ty), mask=inside)
