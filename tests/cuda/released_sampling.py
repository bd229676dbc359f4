"""``sampling`` at the released vocabulary, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.sampling import (
    run_apply_logit_bias,
    run_apply_penalties,
    run_apply_token_mask,
    run_finite_rows,
    run_greedy,
    run_process_logits,
    run_race,
    run_sample,
    run_top_logprobs,
)

_ROWS = 64
_VOCAB = 129280


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _logits() -> torch.Tensor:
    return _meta(_ROWS, _VOCAB)


def _int32(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _seeds() -> torch.Tensor:
    return _meta(_ROWS, dtype=torch.int64)


def _penalties() -> None:
    in_prompt = _meta(_ROWS, _VOCAB, dtype=torch.bool)
    run_apply_penalties(_logits(), _int32(_ROWS, _VOCAB), in_prompt, _meta(_ROWS), _meta(_ROWS), _meta(_ROWS))


CALLS = {
    "apply_logit_bias": lambda: run_apply_logit_bias(_logits(), _int32(_ROWS, 300), _meta(_ROWS, 300)),
    "apply_penalties": _penalties,
    "apply_token_mask": lambda: run_apply_token_mask(_logits(), _int32(_ROWS, _VOCAB // 32)),
    "finite_rows": lambda: run_finite_rows(_logits()),
    "greedy": lambda: run_greedy(_logits()),
    "process_logits": lambda: run_process_logits(_logits(), _meta(_ROWS), _int32(_ROWS), _meta(_ROWS), _meta(_ROWS)),
    "process_logits_temperature": lambda: run_process_logits(_logits(), _meta(_ROWS)),
    "race": lambda: run_race(_logits(), _seeds(), _int32(_ROWS), purpose=0),
    "sample": lambda: run_sample(_logits(), _seeds(), _int32(_ROWS), purpose=0),
    "top_logprobs": lambda: run_top_logprobs(_logits(), _int32(_ROWS), n=20),
}
"""Name -> a call of an adapter on tensors without storage."""
