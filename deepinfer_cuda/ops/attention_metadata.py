"""``attention``: where the rows of a step read and write, one launch each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.draft_slots import draft_slots
from deepinfer_core.ops.attention.metadata import (
    context_gather,
    context_indices,
    entry_metadata,
    entry_slots,
    window_slots,
)
from deepinfer_core.ops.attention.window_indices import window_indices
from deepinfer_cuda.kernels.context_gather import context_gather_kernel
from deepinfer_cuda.kernels.context_indices import context_indices_kernel
from deepinfer_cuda.kernels.draft_slots import draft_slots_kernel
from deepinfer_cuda.kernels.entry_metadata import entry_metadata_kernel
from deepinfer_cuda.kernels.entry_slots import entry_slots_kernel
from deepinfer_cuda.kernels.window_indices import window_indices_kernel
from deepinfer_cuda.kernels.window_slots import window_slots_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.row_tiles import power_of_two

_ELEMENTS = 1024
"""Numbers that one program makes."""
_SEQUENCES = 64
"""Sequences whose lengths are looked at in one load."""


def run_window_slots(
    positions: Tensor, row_sequence: Tensor, state_slots: Tensor, *, window: int, ring: int
) -> tuple[Tensor, Tensor]:
    """``attention.window_slots``."""
    num_rows = positions.shape[0]
    slots, stores = _integers(positions, num_rows, window), _integers(positions, num_rows)
    tile, num_programs = _tile(num_rows, window)
    launch(
        window_slots_kernel,
        (num_programs,),
        *(_dense(positions), _dense(row_sequence), _dense(state_slots), slots, stores, num_rows),
        WINDOW=window,
        RING=ring,
        **tile,
    )
    return slots, stores


def run_draft_slots(
    positions: Tensor, row_sequence: Tensor, state_slots: Tensor, *, window: int, ring: int, block: int
) -> tuple[Tensor, Tensor]:
    """``attention.draft_slots``."""
    num_rows = positions.shape[0]
    slots, stores = _integers(positions, num_rows, window + block), _integers(positions, num_rows)
    tile, num_programs = _tile(num_rows, window + block)
    launch(
        draft_slots_kernel,
        (num_programs,),
        *(_dense(positions), _dense(row_sequence), _dense(state_slots), slots, stores, num_rows),
        WINDOW=window,
        RING=ring,
        BLOCK=block,
        **tile,
    )
    return slots, stores


def run_window_indices(
    positions: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    context_lengths: Tensor,
    query_lengths: Tensor,
    window_start: Tensor | None = None,
    *,
    window: int,
    ring: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``attention.window_indices``."""
    num_rows, num_sequences = positions.shape[0], state_slots.shape[0]
    indices, stores = _integers(positions, num_rows, window), _integers(positions, num_rows)
    history = _integers(positions, num_sequences * window)
    tile, num_programs = _tile(num_rows, window)
    launch(
        window_indices_kernel,
        (num_sequences + num_programs,),
        *(_dense(positions), _dense(row_sequence), _dense(state_slots)),
        *(_dense(context_lengths), _dense(query_lengths), _given(window_start, state_slots)),
        *(indices, history, stores, num_rows, num_sequences),
        WINDOW=window,
        RING=ring,
        FLOORED=window_start is not None,
        SEQUENCES=_SEQUENCES,
        **tile,
    )
    return indices, history, stores


def run_entry_metadata(
    positions: Tensor,
    row_sequence: Tensor,
    block_table: Tensor,
    store_from: Tensor | None = None,
    *,
    ratio: int,
    rows_per_block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``attention.entry_metadata``."""
    num_rows = positions.shape[0]
    visible, slots, entry_positions = (_integers(positions, num_rows) for _ in range(3))
    table, stride = rows_of(block_table)
    launch(
        entry_metadata_kernel,
        (-(-num_rows // _ELEMENTS),),
        *(_dense(positions), _dense(row_sequence), table, _given(store_from, positions)),
        *(visible, slots, entry_positions, num_rows, stride, table.shape[1]),
        RATIO=ratio,
        LIMITED=store_from is not None,
        ROWS_PER_BLOCK=rows_per_block,
        ROWS=_ELEMENTS,
    )
    return visible, slots, entry_positions


def run_entry_slots(entries: Tensor, row_sequence: Tensor, block_table: Tensor, *, rows_per_block: int) -> Tensor:
    """``attention.entry_slots``."""
    num_rows, width = entries.shape
    slots = _integers(entries, num_rows, width)
    table, stride = rows_of(block_table)
    tile, num_programs = _tile(num_rows, width)
    launch(
        entry_slots_kernel,
        (num_programs,),
        *(_dense(entries), _dense(row_sequence), table, slots, num_rows, stride),
        ENTRIES=width,
        ROWS_PER_BLOCK=rows_per_block,
        **tile,
    )
    return slots


def run_context_indices(entries: Tensor, row_sequence: Tensor, starts: Tensor) -> Tensor:
    """``attention.context_indices``."""
    num_rows, width = entries.shape
    indices = _integers(entries, num_rows, width)
    tile, num_programs = _tile(num_rows, width)
    launch(
        context_indices_kernel,
        (num_programs,),
        *(_dense(entries), _dense(row_sequence), _dense(starts), indices, num_rows),
        ENTRIES=width,
        **tile,
    )
    return indices


def run_context_gather(
    context_lengths: Tensor, block_table: Tensor, *, ratio: int, rows_per_block: int, total: int
) -> tuple[Tensor, Tensor]:
    """``attention.context_gather``."""
    num_sequences = context_lengths.shape[0]
    slots, starts = _integers(context_lengths, total), _integers(context_lengths, num_sequences)
    table, stride = rows_of(block_table)
    launch(
        context_gather_kernel,
        (max(-(-total // _ELEMENTS), 1),),
        *(_dense(context_lengths), table, slots, starts, total, num_sequences, stride),
        RATIO=ratio,
        ROWS_PER_BLOCK=rows_per_block,
        ENTRIES=_ELEMENTS,
    )
    return slots, starts


def _integers(like: Tensor, *shape: int) -> Tensor:
    """An int32 result without contents."""
    return torch.empty(shape, dtype=torch.int32, device=like.device)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor without gaps between its numbers."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _given(limits: Tensor | None, instead: Tensor) -> Tensor:
    """One number for each sequence, or any tensor in its place that the kernel will not read."""
    return _dense(instead if limits is None else limits)


def _tile(num_rows: int, width: int) -> tuple[dict[str, Any], int]:
    """``ROWS`` and ``COLUMNS`` of a program, and how many programs the rows take."""
    columns = power_of_two(width)
    rows = max(_ELEMENTS // columns, 1)
    return {"ROWS": rows, "COLUMNS": columns}, -(-num_rows // rows)


IMPLEMENTATIONS = {
    window_slots: (Implementation(run_window_slots, row_invariant=True),),
    window_indices: (Implementation(run_window_indices, row_invariant=True),),
    entry_metadata: (Implementation(run_entry_metadata, row_invariant=True),),
    entry_slots: (Implementation(run_entry_slots, row_invariant=True),),
    context_gather: (Implementation(run_context_gather, row_invariant=True),),
    context_indices: (Implementation(run_context_indices, row_invariant=True),),
    draft_slots: (Implementation(run_draft_slots, row_invariant=True),),
}
