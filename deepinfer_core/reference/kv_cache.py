"""Cache ops on the CPU: projected rows become cached keys, and cached rows become numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.reference.chunks import map_rows
from deepinfer_core.reference.norm import normed
from deepinfer_core.reference.records import read_rows, write_rows
from deepinfer_core.reference.rotary import rotate_, turns, wide_copy
from deepinfer_core.reference.rounding import GRIDS, cast, round_rows, through
from deepinfer_core.tensor import Cache


def run_store(rows: Tensor, slots: Tensor, cache: Cache) -> None:
    """``kv_cache.store``."""
    write_rows(cache, slots, rows.float())


def run_load(slots: Tensor, cache: Cache, *, out: str) -> Tensor:
    """``kv_cache.load``."""
    return map_rows(lambda slots: read_rows(cache, slots), (slots,), 2 * cache.width, TORCH_DTYPES[out])


def run_rotate_store(
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    cache: Cache,
    norm_weight: Tensor | None = None,
    *,
    eps: float,
) -> None:
    """``kv_cache.rotate_store``."""
    if not len(rows):
        return
    write_rows(cache, slots, _rotated(rows, norm_weight, turns(positions, table), eps))


def run_extend_window(
    rows: Tensor,
    norm_weight: Tensor,
    positions: Tensor,
    table: Tensor,
    history_slots: Tensor,
    store_slots: Tensor,
    cache: Cache,
    *,
    eps: float,
    out: str,
) -> Tensor:
    """``kv_cache.extend_window``."""
    history = read_rows(cache, history_slots)
    rotated = _rotated(rows, norm_weight, turns(positions, table), eps)
    write_rows(cache, store_slots, rotated)
    grid = GRIDS[cache.format]
    current = map_rows(lambda rows: round_rows(rows, grid), (rotated,), 2 * rows.shape[1], TORCH_DTYPES[out])
    return torch.cat((cast(history, current.dtype), current))


def _rotated(rows: Tensor, norm_weight: Tensor | None, turn: Tensor, eps: float) -> Tensor:
    """Rows normed (where a weight is given) and rotated, in float32 with the roundings of their own type."""
    weight = None if norm_weight is None else norm_weight.float()

    def work(rows: Tensor, turn: Tensor) -> Tensor:
        wide = wide_copy(rows) if weight is None else through(normed(rows.float(), weight, eps), rows.dtype)
        return through(rotate_(wide.unsqueeze(1), turn).squeeze(1), rows.dtype)

    return map_rows(work, (rows, turn), 2 * rows.shape[1], torch.float32)
