"""``attention`` at the released sizes, for the compile test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepinfer_core.tensor import Cache
from deepinfer_cuda.ops.attention import run_sparse_decode, run_sparse_decode_whole, run_sparse_prefill
from deepinfer_cuda.ops.attention_metadata import (
    run_context_gather,
    run_context_indices,
    run_draft_slots,
    run_entry_metadata,
    run_entry_slots,
    run_window_indices,
    run_window_slots,
)

_HEADS, _CHANNELS, _WINDOW, _SELECTED, _RING, _BLOCK = 64, 512, 128, 512, 134, 128
_ROWS, _SEQUENCES = 384, 64


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _integers(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _ring() -> Cache:
    return Cache(_meta(80, 3128928, dtype=torch.uint8)[:, : _RING * 528], "mxfp8", _CHANNELS, _RING)


def _entries(format: str, record: int, ratio: int) -> Cache:
    rows = _BLOCK // ratio
    return Cache(_meta(1000, 114048, dtype=torch.uint8)[:, : rows * record], format, _CHANNELS, rows)


def _decode(
    num_rows: int,
    context: Cache | None,
    run: Callable[..., torch.Tensor] = run_sparse_decode,
    *,
    out: str = "f32",
    width: int = _WINDOW,
) -> Callable[[], Any]:
    """A call on rows that read ``width`` window slots, and selected entries if there is a context."""
    slots = None if context is None else _integers(num_rows, _SELECTED)
    query, sink = _meta(num_rows, _HEADS, _CHANNELS), _meta(_HEADS, dtype=torch.float32)
    return lambda: run(
        query, _ring(), _integers(num_rows, width), sink, context, slots,
        scale=_CHANNELS**-0.5, round_probabilities=True, out=out,
    )  # fmt: skip


def _prefill(*, context: bool, out: str = "f32") -> torch.Tensor:
    return run_sparse_prefill(
        _meta(4096, _HEADS, _CHANNELS),
        _meta(4096 + _WINDOW, _CHANNELS),
        _integers(4096, _WINDOW),
        _meta(_HEADS, dtype=torch.float32),
        _meta(65536, _CHANNELS) if context else None,
        _integers(4096, _SELECTED) if context else None,
        scale=_CHANNELS**-0.5,
        round_probabilities=True,
        out=out,
    )


CALLS: dict[str, Callable[[], Any]] = {
    "decode": _decode(_ROWS, _entries("fp4_e4m3", 288, 2)),
    "decode_one_row": _decode(1, _entries("fp4_e4m3", 288, 1)),
    "decode_bf16_result": _decode(_ROWS, _entries("fp4_e4m3", 288, 1), run_sparse_decode_whole, out="bf16"),
    "decode_mxfp8": _decode(_ROWS, _entries("mxfp8", 528, 1)),
    "decode_window": _decode(_ROWS, None),
    "decode_draft": _decode(320, None, width=_WINDOW + 5),
    "prefill": lambda: _prefill(context=True),
    "prefill_bf16_result": lambda: _prefill(context=True, out="bf16"),
    "prefill_window": lambda: _prefill(context=False),
    "window_slots": lambda: run_window_slots(
        _integers(_ROWS), _integers(_ROWS), _integers(_SEQUENCES), window=_WINDOW, ring=_RING
    ),
    "draft_slots": lambda: run_draft_slots(
        _integers(320), _integers(320), _integers(_SEQUENCES), window=_WINDOW, ring=_RING, block=5
    ),
    "window_indices": lambda: run_window_indices(
        _integers(4096), _integers(4096), *(_integers(4) for _ in range(3)), window=_WINDOW, ring=_RING
    ),
    "window_indices_floored": lambda: run_window_indices(
        _integers(4096), _integers(4096), *(_integers(4) for _ in range(4)), window=_WINDOW, ring=_RING
    ),
    "entry_metadata": lambda: run_entry_metadata(
        _integers(_ROWS), _integers(_ROWS), _integers(_SEQUENCES, 1024), ratio=2, rows_per_block=64
    ),
    "entry_metadata_limited": lambda: run_entry_metadata(
        _integers(4096), _integers(4096), _integers(4, 1024), _integers(4), ratio=2, rows_per_block=64
    ),
    "entry_slots": lambda: run_entry_slots(
        _integers(_ROWS, _SELECTED), _integers(_ROWS), _integers(_SEQUENCES, 1024), rows_per_block=64
    ),
    "context_gather": lambda: run_context_gather(
        _integers(4), _integers(4, 1024), ratio=2, rows_per_block=64, total=65536
    ),
    "context_indices": lambda: run_context_indices(_integers(4096, _SELECTED), _integers(4096), _integers(4)),
}
"""Name -> a call of an adapter on tensors without storage."""
