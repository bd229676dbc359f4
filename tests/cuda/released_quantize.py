"""``quantize`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.quantize import run_dequantize, run_quantize
from deepinfer_cuda.quantised import empty_quantised

_META = torch.device("meta")


def _rows(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=_META)


CALLS = {
    "activations": lambda: run_quantize(_rows(8192, 5120), format="mxfp8"),
    "index_queries": lambda: run_quantize(_rows(8192, 32, 128), format="mxfp4"),
    "entries": lambda: run_quantize(_rows(8192, 512), format="fp4_e4m3"),
    "dequantize_mxfp8": lambda: run_dequantize(empty_quantised((8192, 5120), "mxfp8", _META), out="bf16"),
    "dequantize_mxfp4": lambda: run_dequantize(empty_quantised((8192, 128), "mxfp4", _META), out="bf16"),
    "dequantize_fp4_e4m3": lambda: run_dequantize(empty_quantised((8192, 512), "fp4_e4m3", _META), out="f32"),
}
"""Name -> a call of an adapter on tensors without storage."""
