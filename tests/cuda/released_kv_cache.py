"""``kv_cache`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.tensor import Cache
from deepinfer_cuda.ops.kv_cache import (
    run_compress_pairs,
    run_copy_blocks,
    run_extend_window,
    run_load,
    run_rotate_store,
    run_store,
)

_ROWS = 8192
_TABLE_ROWS = 1 << 20


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _slots(count: int = _ROWS) -> torch.Tensor:
    return _meta(count, dtype=torch.int32)


def _cache(format: str, width: int, rows: int) -> Cache:
    """One layer's part of a pool: a slice of wider rows."""
    size = rows * FORMATS[format].record_bytes(width)
    pool = _meta(1024, 8 * size, dtype=torch.uint8)
    return Cache(pool[:, size : 2 * size], format, width, rows, sectioned=format == "mxfp4")


def _window() -> Cache:
    return _cache("mxfp8", 512, 134)


def _main() -> Cache:
    return _cache("fp4_e4m3", 512, 64)


def _index() -> Cache:
    return _cache("mxfp4", 128, 64)


def _table() -> torch.Tensor:
    return _meta(_TABLE_ROWS, 64, dtype=torch.float32)


def _rotate_store(cache: Cache, *, norm: bool) -> None:
    rows, weight = _meta(_ROWS, cache.width), _meta(cache.width) if norm else None
    run_rotate_store(rows, _slots(), _table(), _slots(), cache, weight, eps=1e-20)


def _compress_pairs() -> None:
    gate, value = _meta(_ROWS, 1024, dtype=torch.float32).chunk(2, -1)
    ring = _meta(64, 1 << 20, dtype=torch.float32)[:, : 7 * 1024].unflatten(1, (7, 2, 512))
    run_compress_pairs(gate, value, _slots(), _slots(), _slots(64), _slots(64), ring, out="bf16")


CALLS = {
    "store_window": lambda: run_store(_meta(_ROWS, 512), _slots(), _window()),
    "load_window": lambda: run_load(_slots(), _window(), out="bf16"),
    "load_main": lambda: run_load(_slots(), _main(), out="bf16"),
    "load_index": lambda: run_load(_slots(), _index(), out="bf16"),
    "copy_blocks": lambda: run_copy_blocks(_meta(1024, 1 << 20, dtype=torch.uint8), _meta(64, 2, dtype=torch.int32)),
    "compress_pairs": _compress_pairs,
    "rotate_store_window": lambda: _rotate_store(_window(), norm=True),
    "rotate_store_main": lambda: _rotate_store(_main(), norm=False),
    "rotate_store_index": lambda: _rotate_store(_index(), norm=True),
    "extend_window": lambda: run_extend_window(
        _meta(_ROWS, 512), _meta(512), _slots(), _table(), _slots(127), _slots(), _window(), eps=1e-20, out="bf16"
    ),
}
"""Name -> a call of an adapter on tensors without storage."""
