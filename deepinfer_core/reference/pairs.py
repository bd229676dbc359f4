"""Two neighbouring tokens become one compressed entry, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.reference.rounding import cast, integer


def run_compress_pairs(
    gate: Tensor,
    value: Tensor,
    positions: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    context_lengths: Tensor,
    ring: Tensor,
    *,
    out: str,
) -> Tensor:
    """``kv_cache.compress_pairs``; the softmax of two gates is the sigmoid of their difference."""
    rows, length = torch.stack((gate, value), 1), integer(ring.shape[1])
    sequence = row_sequence.clamp_min(0)
    slot = state_slots.index_select(0, sequence)
    partner = ring[slot, torch.remainder(positions - 1, length)]
    inside = (row_sequence[1:] == row_sequence[:-1]).view(-1, 1, 1)
    torch.where(inside, rows[:-1], partner[1:], out=partner[1:])
    pooled = torch.lerp(partner[:, 1], value, torch.sigmoid(gate - partner[:, 0]))
    valid = row_sequence >= 0
    kept = valid & (positions >= context_lengths.index_select(0, sequence) - length)
    _write(ring, slot, torch.remainder(positions, length), rows, kept)
    closing = valid & (positions.bitwise_and(integer(1)) == 1)
    return cast(pooled.masked_fill_(~closing.unsqueeze(1), 0.0), TORCH_DTYPES[out])


def _write(ring: Tensor, slot: Tensor, row: Tensor, rows: Tensor, kept: Tensor) -> None:
    """Put the rows that are kept into the ring."""
    if not bool(kept.all()):
        chosen = kept.nonzero().squeeze(1)
        slot, row, rows = (t.index_select(0, chosen) for t in (slot, row, rows))
    ring.index_put_((slot, row), rows)
