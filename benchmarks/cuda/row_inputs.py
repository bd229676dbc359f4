"""Inputs of the row-wise ops at the released sizes, on the GPU, and how results are compared with the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.tensor import Cache, QuantTensor

HIDDEN = 5120
WINDOW_ROWS = 134
RING_ROWS = 7
_ROTATED_BYTES = 256 << 20
_MOST_COPIES = 64


def rotated(make: Callable[[], Any], num_bytes: float) -> Callable[[], list[Any]]:
    """Works on inputs of their own, as many as exceed L2 together, at least two and at most 64."""
    copies = int(min(max(_ROTATED_BYTES // max(num_bytes, 1), 2), _MOST_COPIES))
    return lambda: [make() for _ in range(copies)]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random activations."""
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def integers(high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Random integers in ``[0, high)``."""
    return torch.randint(high, shape, device="cuda", dtype=dtype)


def distinct_slots(rows: int, cache: Cache) -> Tensor:
    """Slots outside the dummy block, each at most once, in random order."""
    high = (len(cache.storage) - 1) * cache.rows_per_block
    return (torch.randperm(high, device="cuda")[:rows] + cache.rows_per_block).to(torch.int32)


def cache_of(kind: str, rows: int) -> Cache:
    """One layer's part of a pool that has room for so many rows: ``window``, ``main`` or ``index``."""
    formats = {"window": ("mxfp8", 512, WINDOW_ROWS), "main": ("fp4_e4m3", 512, 64), "index": ("mxfp4", 128, 64)}
    format, width, block_rows = formats[kind]
    size = block_rows * FORMATS[format].record_bytes(width)
    blocks = -(-rows // block_rows) + 2
    pool = torch.randint(256, (blocks, 2 * size), device="cuda", dtype=torch.uint8)
    pool[:, :] = torch.where(pool > 120, 100, pool)  # no NaN among e4m3 bytes
    return Cache(pool[:, :size], format, width, block_rows, sectioned=kind == "index")


def record_bytes(kind: str) -> int:
    """Bytes of one cached row."""
    return {"window": 528, "main": 288, "index": 68}[kind]


def differing_bytes(actual: Any, expected: Any) -> float:
    """Share of bytes that differ, over all tensors of a result."""
    mine, theirs = tensors_of(actual), tensors_of(expected)
    wrong = sum(int((_bytes(a) != _bytes(b)).sum()) for a, b in zip(mine, theirs, strict=True))
    return wrong / max(sum(_bytes(b).numel() for b in theirs), 1)


def relative_error(actual: Any, expected: Any) -> float:
    """Largest of ``|a - b| / |b|`` (norms) over the tensors of a result."""
    pairs = zip(tensors_of(actual), tensors_of(expected), strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)) for a, b in pairs)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of a result, in order; none of None."""
    if value is None:
        return []
    if isinstance(value, QuantTensor):
        return [value.data, value.scale]
    if isinstance(value, Cache):
        return [value.storage.contiguous()]
    return [value] if isinstance(value, Tensor) else [t for part in value for t in tensors_of(part)]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
