"""``hyper_connection`` at the released sizes, for the compile test."""

from __future__ import annotations

import torch

from deepinfer_cuda.ops.hyper_connection import (
    run_collapse,
    run_enter,
    run_expand,
    run_head_mix,
    run_mixes,
    run_retain_rows,
    run_update,
)

_STREAMS, _WIDTH, _ROWS = 4, 5120, 8192
_OUTPUTS = _STREAMS * (_STREAMS + 2)


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _wide(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.float32)


def _streams() -> torch.Tensor:
    return _meta(_ROWS, _STREAMS, _WIDTH)


def _function(rows: int = _OUTPUTS) -> tuple[torch.Tensor, torch.Tensor]:
    return _wide(rows, _STREAMS * _WIDTH), _wide(rows)


CALLS = {
    "enter": lambda: run_enter(
        _streams(),
        _wide(_ROWS, _STREAMS),
        *_function(),
        _wide(3),
        _meta(_WIDTH),
        norm_eps=1e-20,
        eps=1e-6,
        iterations=20,
    ),
    "mixes": lambda: run_mixes(_streams(), *_function(), _wide(3), norm_eps=1e-20, eps=1e-6, iterations=20),
    "head_mix": lambda: run_head_mix(_streams(), *_function(_STREAMS), _wide(1), norm_eps=1e-20, eps=1e-6),
    "expand": lambda: run_expand(_meta(_ROWS, _WIDTH), num_streams=_STREAMS),
    "retain_rows": lambda: run_retain_rows(_streams(), _wide(_ROWS, _STREAMS), _meta(560, dtype=torch.int32)),
    "collapse": lambda: run_collapse(_streams(), _wide(_ROWS, _STREAMS)),
    "update": lambda: run_update(
        _meta(_ROWS, _WIDTH), _streams(), _wide(_ROWS, _STREAMS), _wide(_ROWS, _STREAMS, _STREAMS)
    ),
}
"""Name -> a call of an adapter on tensors without storage."""
