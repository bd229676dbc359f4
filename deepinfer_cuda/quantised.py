"""Quantised tensors and caches as kernels take them: bytes, and compile-time facts of the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.tensor import Cache, QuantTensor


def group_constants(format: str) -> dict[str, Any]:
    """``FORMAT`` and ``GROUP`` of a kernel."""
    return {"FORMAT": format, "GROUP": FORMATS[format].group}


def cache_constants(cache: Cache) -> dict[str, Any]:
    """``FORMAT``, ``GROUP``, ``ROWS_PER_BLOCK`` and ``SECTIONED`` of a kernel."""
    return {
        **group_constants(cache.format),
        "ROWS_PER_BLOCK": cache.rows_per_block,
        "SECTIONED": cache.sectioned,
    }


def empty_quantised(shape: Sequence[int], format: str, device: torch.device) -> QuantTensor:
    """A dense quantised tensor without contents."""
    *rows, width = shape
    spec = FORMATS[format]
    is_byte = spec.element == "e4m3"
    data = torch.empty(
        (*rows, width if is_byte else width // 2),
        dtype=torch.float8_e4m3fn if is_byte else torch.uint8,
        device=device,
    )
    scale = torch.empty((*rows, width // spec.group), dtype=torch.uint8, device=device)
    return QuantTensor(data, scale, format)
