"""Tokens that only the device knows; definitions are at the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deepinfer_core.ops.embedding.pending_tokens import PENDING

if TYPE_CHECKING:
    from torch import Tensor


def run_resolve_tokens(
    ids: Tensor,
    compressed_ids: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    latest: Tensor,
    compressed_map: Tensor,
) -> tuple[Tensor, Tensor]:
    """``embedding.resolve_tokens``: looks only at the rows that are pending, which are mostly none."""
    rows = ((ids == PENDING) & (row_sequence >= 0)).nonzero().squeeze(-1)
    tokens, compressed = ids.clone(), compressed_ids.clone()
    if rows.numel():
        found = latest[state_slots[row_sequence[rows].long()].long()].clamp_min_(0)
        tokens[rows] = found
        compressed[rows] = compressed_map[found.long()]
    return tokens, compressed


def run_remember_tokens(token_ids: Tensor, slots: Tensor, latest: Tensor) -> None:
    """``embedding.remember_tokens``."""
    kept = slots >= 0
    latest.index_copy_(0, slots[kept].to(torch.int64), token_ids[kept])
