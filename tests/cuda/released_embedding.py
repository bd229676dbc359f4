"""``embedding`` at the released sizes, for the compile test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepinfer_cuda.ops.embedding import (
    run_remember_tokens,
    run_resolve_tokens,
    run_token_embedding,
    run_vocabulary_logits,
)

_VOCABULARY, _HIDDEN = 129280, 5120


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _int32(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _logits(rows: int) -> Callable[[], Any]:
    return lambda: run_vocabulary_logits(_meta(rows, _HIDDEN), _meta(_VOCABULARY, _HIDDEN))


CALLS: dict[str, Callable[[], Any]] = {
    "remember_tokens": lambda: run_remember_tokens(_int32(64), _int32(64), _int32(257)),
    "resolve_tokens": lambda: run_resolve_tokens(
        _int32(64), _int32(64), _int32(64), _int32(64), _int32(257), _int32(_VOCABULARY)
    ),
    "token_embedding": lambda: run_token_embedding(
        _meta(64, dtype=torch.int32), _meta(_VOCABULARY, _HIDDEN), out="bf16"
    ),
    **{f"vocabulary_logits_{rows}_rows": _logits(rows) for rows in (1, 64, 128, 4096)},
}
"""Name -> a call of an adapter on tensors without storage."""
