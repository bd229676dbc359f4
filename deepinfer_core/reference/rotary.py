"""Rotary position embedding on the CPU: channel pairs are complex numbers, turned in place by one product."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.reference.chunks import map_rows


def turns(positions: Tensor, table: Tensor) -> Tensor:
    """``[T, 1, width / 2]`` complex numbers of unit size, one per channel pair.

    Args:
        positions: Position of each row.
        table: Cosines, then sines, of each position.
    """
    cosine, sine = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    return torch.complex(cosine, sine)


def rotate_(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the trailing channels of float32 rows ``[T, N, D]`` in place; returns ``x``."""
    pairs = x[..., -2 * turn.shape[-1] :].unflatten(-1, (-1, 2))
    torch.view_as_complex(pairs).mul_(turn)
    return x


def wide_copy(x: Tensor) -> Tensor:
    """Dense float32 numbers that may be written."""
    return x.clone(memory_format=torch.contiguous_format) if x.dtype == torch.float32 else x.float().contiguous()


def run_apply_rotary(x: Tensor, positions: Tensor, table: Tensor, *, inverse: bool = False) -> Tensor:
    """``rotary.apply_rotary``."""
    turn = turns(positions, table)

    rows = (x, turn.conj_physical() if inverse else turn)
    return map_rows(lambda x, turn: rotate_(wide_copy(x), turn), rows, x.shape[1] * x.shape[2], x.dtype)
