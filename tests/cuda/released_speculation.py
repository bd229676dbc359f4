"""``speculation`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.speculation import (
    run_accept_prefix,
    run_choose_lengths,
    run_confidence,
    run_draft_features,
    run_markov_logits,
    run_verify,
)

_SEQUENCES = 64
_DRAFTS = 5
_ROWS = _SEQUENCES * (_DRAFTS + 1)
_VOCAB = 129280
_RANK = 256


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _float32(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.float32)


def _int32(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _verify(draft_logprobs: torch.Tensor | None) -> None:
    seeds = _meta(_ROWS, dtype=torch.int64)
    run_verify(_float32(_ROWS, _VOCAB), _int32(_ROWS), draft_logprobs, seeds, _int32(_ROWS))


CALLS = {
    "accept_prefix": lambda: run_accept_prefix(_meta(_SEQUENCES, _DRAFTS, dtype=torch.bool), _int32(_SEQUENCES)),
    "choose_lengths": lambda: run_choose_lengths(_float32(_SEQUENCES, _DRAFTS), _int32(_SEQUENCES), _int32(1)),
    "confidence": lambda: run_confidence(
        _meta(_SEQUENCES, 5120), _int32(_SEQUENCES), _meta(_VOCAB, _RANK), _meta(1, 5120 + _RANK)
    ),
    "draft_features": lambda: run_draft_features(_meta(8192, 4, 5120)),
    "markov_logits": lambda: run_markov_logits(
        _float32(_SEQUENCES, _VOCAB), _int32(_SEQUENCES), _meta(_VOCAB, _RANK), _meta(_VOCAB, _RANK)
    ),
    "verify": lambda: _verify(_float32(_ROWS, _VOCAB)),
    "verify_one_hot": lambda: _verify(None),
}
"""Name -> a call of an adapter on tensors without storage."""
