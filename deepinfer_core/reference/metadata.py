"""Slots and indices of a step on the CPU; definitions are at the ops."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.reference.rounding import integer


def run_window_slots(
    positions: Tensor, row_sequence: Tensor, state_slots: Tensor, *, window: int, ring: int
) -> tuple[Tensor, Tensor]:
    """``attention.window_slots``."""
    padding = row_sequence < 0
    base = state_slots.index_select(0, row_sequence.clamp_min(0)) * integer(ring)
    first = (positions - (window - 1)).clamp_min_(0).unsqueeze(1)
    position = first + torch.arange(window, dtype=torch.int32)
    slots = torch.remainder(position, integer(ring)).add_(base.unsqueeze(1))
    slots.masked_fill_((position > positions.unsqueeze(1)).logical_or_(padding.unsqueeze(1)), -1)
    return slots, torch.remainder(positions, integer(ring)).add_(base).masked_fill_(padding, -1)


def run_entry_slots(entries: Tensor, row_sequence: Tensor, block_table: Tensor, *, rows_per_block: int) -> Tensor:
    """``attention.entry_slots``."""
    missing = entries < 0
    rows, safe = integer(rows_per_block), entries.clamp_min(0)
    number = torch.floor_divide(safe, rows)
    blocks = block_table.index_select(0, row_sequence.clamp_min(0)).gather(1, number.long())
    return ((blocks - number) * rows).add_(safe).masked_fill_(missing, -1)
