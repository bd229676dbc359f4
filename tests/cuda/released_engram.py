"""``engram`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.ops.engram import run_gate, run_hash_rows, run_lookup, run_ngram_context

_ROWS = 8192
_COLUMNS = 24
_TABLE_ROWS = 384_006_168


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _int32(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _int64(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int64)


def _table() -> QuantTensor:
    data = _meta(_TABLE_ROWS, 256, dtype=torch.float8_e4m3fn)
    return QuantTensor(data, _meta(_TABLE_ROWS, 8, dtype=torch.uint8), "mxfp8")


CALLS = {
    "ngram_context": lambda: run_ngram_context(
        _int32(_ROWS), _int32(_ROWS), _int32(_ROWS), _int32(64, 3), max_ngram=4, pad_id=2
    ),
    "hash_rows": lambda: run_hash_rows(_int32(_ROWS, 4), _int32(_ROWS), _int64(4), _int64(_COLUMNS), _int64(_COLUMNS)),
    "lookup": lambda: run_lookup(_int32(_ROWS, _COLUMNS), _table()),
    "gate": lambda: run_gate(_meta(_ROWS, 4, 5120), _meta(_ROWS, 5 * 5120), _meta(4, 5120), _meta(4, 5120), eps=1e-20),
}
"""Name -> a call of an adapter on tensors without storage."""
