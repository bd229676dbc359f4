"""``norm`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.norm import run_rms_norm


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS = {
    "rms_norm": lambda: run_rms_norm(_meta(8192, 5120), _meta(5120), eps=1e-20),
}
"""Name -> a call of an adapter on tensors without storage."""
