"""``norm`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.norm import run_rms_norm, run_rms_norm_quantize


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS = {
    "rms_norm": lambda: run_rms_norm(_meta(8192, 5120), _meta(5120), eps=1e-20),
    "rms_norm_query": lambda: run_rms_norm(_meta(8192, 1792)[:, :1280], _meta(1280), eps=1e-20),
    "rms_norm_entry": lambda: run_rms_norm(_meta(8192, 512), _meta(512), eps=1e-20),
    "rms_norm_quantize": lambda: run_rms_norm_quantize(_meta(8192, 5120), _meta(5120), eps=1e-20, format="mxfp8"),
}
"""Name -> a call of an adapter on tensors without storage."""
