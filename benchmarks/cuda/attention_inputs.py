"""Random inputs of attention at the released sizes, on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.tensor import Cache

HEADS, CHANNELS, WINDOW, SELECTED, RING, BLOCK = 64, 512, 128, 512, 134, 128
CONTEXT = 131072
"""Tokens before the rows; with ratio 1 as many entries."""


def decode_inputs(sequences: int, rows: int) -> Callable[[], dict[str, Any]]:
    """What makes the inputs of ``sparse_decode``, each time with other rows over the same caches.

    Args:
        sequences: Sequences, each with its own ring and its own entries; at least 8 of them have contents.
        rows: Query rows of each.
    """
    pool = max(sequences, 8)
    window = Cache(_mxfp8_records(pool * RING).view(pool, -1), "mxfp8", CHANNELS, RING)
    context = Cache(_fp4_records(pool * CONTEXT).view(pool * CONTEXT // BLOCK, -1), "fp4_e4m3", CHANNELS, BLOCK)
    sink = torch.randn(HEADS, device="cuda")
    count = sequences * rows

    def make() -> dict[str, Any]:
        sequence = torch.randperm(pool, device="cuda")[:sequences].repeat_interleave(rows)[:, None]
        first = torch.randint(RING, (count, 1), device="cuda")
        ring = sequence * RING + (first + torch.arange(WINDOW, device="cuda")) % RING
        entries = sequence * CONTEXT + _selected(count)
        return {
            "query": _queries(count),
            "window": window,
            "window_slots": ring.to(torch.int32),
            "sink": sink,
            "context": context,
            "context_slots": entries.to(torch.int32),
        }

    return make


def prefill_inputs(rows: int) -> dict[str, Any]:
    """Inputs of ``sparse_prefill``: a chunk of one prompt behind a full window."""
    window = torch.arange(rows, device="cuda")[:, None] + 1 + torch.arange(WINDOW, device="cuda")
    return {
        "query": _queries(rows),
        "window_rows": _rows(rows + WINDOW),
        "window_indices": window.to(torch.int32),
        "sink": torch.randn(HEADS, device="cuda"),
        "context_rows": _rows(CONTEXT),
        "context_indices": _selected(rows).to(torch.int32),
    }


def gathered_keys(rows: int) -> Tensor:
    """Keys of every row, side by side."""
    return _rows(rows * (WINDOW + SELECTED)).view(rows, WINDOW + SELECTED, CHANNELS)


def random_rotation(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of heads, positions, table."""
    angle = torch.rand(CONTEXT, 32, device="cuda") * 6.28
    positions = torch.randint(CONTEXT, (rows,), dtype=torch.int32, device="cuda")
    return (
        torch.randn(rows, HEADS, CHANNELS, device="cuda").to(dtype),
        positions,
        torch.cat((angle.cos(), angle.sin()), 1),
    )


def _queries(rows: int) -> Tensor:
    return torch.randn(rows, HEADS, CHANNELS, dtype=torch.bfloat16, device="cuda")


def _rows(count: int) -> Tensor:
    return torch.randn(count, CHANNELS, dtype=torch.bfloat16, device="cuda")


def _selected(rows: int) -> Tensor:
    """Ascending entries, spread over the whole context."""
    return torch.randint(CONTEXT, (rows, SELECTED), device="cuda").sort(1).values


def _mxfp8_records(count: int) -> Tensor:
    values = (torch.randn(count, CHANNELS, device="cuda") * 64).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.randint(119, 122, (count, CHANNELS // 32), dtype=torch.uint8, device="cuda")
    return torch.cat((values.view(torch.uint8), scales), 1)


def _fp4_records(count: int) -> Tensor:
    """Any codes, scales of 0.25 to 1."""
    records = torch.empty(count, CHANNELS // 2 + CHANNELS // 16, dtype=torch.uint8, device="cuda").random_(0, 256)
    records[:, CHANNELS // 2 :].random_(0x28, 0x39)
    return records
