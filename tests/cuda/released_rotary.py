"""``rotary`` at the released sizes, for the compile test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepinfer_cuda.ops.rotary import rotate_back_quantize, rotate_back_through_mxfp8, run_apply_rotary


def _arguments(num_heads: int, channels: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of heads, positions and table."""
    return (
        torch.empty(4096, num_heads, channels, dtype=dtype, device="meta"),
        torch.empty(4096, dtype=torch.int32, device="meta"),
        torch.empty(1 << 20, 64, dtype=torch.float32, device="meta"),
    )


CALLS: dict[str, Callable[[], Any]] = {
    "queries": lambda: run_apply_rotary(*_arguments(64, 512, torch.bfloat16)),
    "index_queries": lambda: run_apply_rotary(*_arguments(32, 128, torch.bfloat16)),
    "back": lambda: run_apply_rotary(*_arguments(64, 512, torch.float32), inverse=True),
    "back_quantize": lambda: rotate_back_quantize(*_arguments(64, 512, torch.float32)),
    "back_through_mxfp8": lambda: rotate_back_through_mxfp8(*_arguments(64, 512, torch.float32)),
}
"""Name -> a call of an adapter on tensors without storage."""
