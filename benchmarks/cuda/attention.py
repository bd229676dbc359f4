"""Measurements of ``attention`` and ``rotary`` at the released sizes: decode and prefill, rotation, metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from attention_inputs import (
    CHANNELS,
    CONTEXT,
    HEADS,
    SELECTED,
    WINDOW,
    decode_inputs,
    gathered_keys,
    prefill_inputs,
    random_rotation,
)
from measure import Measurement, Work
from torch import Tensor

from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_cuda.ops.attention import run_sparse_decode, run_sparse_decode_whole, run_sparse_prefill
from deepinfer_cuda.ops.attention_metadata import run_entry_slots, run_window_slots
from deepinfer_cuda.ops.rotary import rotate_back_quantize, run_apply_rotary

_SETTINGS: dict[str, Any] = {"scale": CHANNELS**-0.5, "round_probabilities": True, "out": "f32"}
_KEYS = WINDOW + SELECTED
_FLOP = 4 * HEADS * CHANNELS * _KEYS
_QUERY_BYTES, _RESULT_BYTES = HEADS * CHANNELS * 2, HEADS * CHANNELS * 4
_READ_BYTES = WINDOW * 528 + SELECTED * 288 + _KEYS * 4
_L2_BYTES = 120 << 20
"""Works that are timed in turn touch at least this much."""
_CHECKED_ROWS = 12


def measurements() -> Iterator[Measurement]:
    """Everything of the two families that has a target, and two metadata ops."""
    yield _prefill(4096)
    for sequences in (1, 64, 256):
        for rows in (1, 6):
            yield _decode(sequences, rows, "decode", run_sparse_decode)
    for sequences in (1, 64):
        yield _decode(sequences, 1, "decode_invariant", run_sparse_decode_whole)
    for rows in (1, 256, 8192):
        yield from _rotations(rows)
    yield from _metadata(64, 6)


def _works(make: Callable[[], Work], num_bytes: float) -> list[Work]:
    """Enough works that what they read does not stay in L2."""
    return [make() for _ in range(min(max(math.ceil(_L2_BYTES / num_bytes), 2), 128))]


def _decode(sequences: int, rows: int, name: str, run: Callable[..., Tensor]) -> Measurement:
    count = sequences * rows
    read = count * (_READ_BYTES + _QUERY_BYTES)

    def make() -> list[Work]:
        inputs = decode_inputs(sequences, rows)
        return _works(lambda: partial(run, **inputs(), **_SETTINGS), read)

    def check() -> float:
        given = decode_inputs(sequences, rows)()
        few = {n: given[n][:_CHECKED_ROWS] for n in ("query", "window_slots", "context_slots")}
        expected = sparse_decode.reference(**{**given, **few}, **_SETTINGS)
        return _error(run(**given, **_SETTINGS)[:_CHECKED_ROWS], expected)

    return Measurement(
        group="sparse_attention",
        name=name,
        shape=f"{sequences} x {rows} rows, context {CONTEXT}",
        bytes=read + count * _RESULT_BYTES,
        flop=count * _FLOP,
        make=make,
        peer=lambda: _peer(count),
        target=0.3 if name == "decode" else 0.0,
        check=check,
        tolerance=5e-3,
    )


def _prefill(rows: int) -> Measurement:
    def check() -> float:
        given = prefill_inputs(rows)
        few = {n: given[n][:_CHECKED_ROWS] for n in ("query", "window_indices", "context_indices")}
        expected = sparse_prefill.reference(**{**given, **few}, **_SETTINGS)
        return _error(run_sparse_prefill(**given, **_SETTINGS)[:_CHECKED_ROWS], expected)

    return Measurement(
        group="sparse_attention",
        name="prefill",
        shape=f"{rows} rows, context {CONTEXT}",
        bytes=rows * (_QUERY_BYTES + _RESULT_BYTES + _KEYS * 4) + (rows + WINDOW + CONTEXT) * CHANNELS * 2,
        flop=rows * _FLOP,
        make=lambda: [partial(run_sparse_prefill, **prefill_inputs(rows), **_SETTINGS) for _ in range(2)],
        peer=lambda: _peer(rows),
        target=0.45,
        check=check,
        tolerance=5e-3,
    )


def _peer(rows: int) -> list[Work]:
    """Two batched products and a softmax of torch in bf16, on keys that have been gathered and decoded before."""
    query = torch.randn(rows, HEADS, CHANNELS, dtype=torch.bfloat16, device="cuda")
    copies = min(max(math.ceil(_L2_BYTES / (rows * _KEYS * CHANNELS * 2)), 1), 64)
    return [partial(_dense_attention, query, gathered_keys(rows)) for _ in range(copies)]


def _dense_attention(query: Tensor, keys: Tensor) -> Tensor:
    logits = torch.bmm(query, keys.transpose(1, 2)) * CHANNELS**-0.5
    return torch.bmm(torch.softmax(logits, -1), keys)


def _rotations(rows: int) -> Iterator[Measurement]:
    """Queries by position, and attention's result back and to MXFP8."""
    numbers = rows * HEADS * CHANNELS
    target = 0.7 if rows == 8192 else 0.0
    queries = partial(random_rotation, rows, torch.bfloat16)
    attended = partial(random_rotation, rows, torch.float32)
    yield Measurement(
        group="rotary",
        name="queries",
        shape=f"{rows} rows",
        bytes=4.0 * numbers,
        flop=0.0,
        make=lambda: _works(lambda: partial(run_apply_rotary, *queries()), 4.0 * numbers),
        target=target,
    )
    yield Measurement(
        group="rotary",
        name="back_quantize",
        shape=f"{rows} rows",
        bytes=numbers * (4 + 1 + 1 / 32),
        flop=0.0,
        make=lambda: _works(lambda: partial(rotate_back_quantize, *attended()), 5.0 * numbers),
        target=target,
    )


def _metadata(sequences: int, rows: int) -> Iterator[Measurement]:
    """Slots of window and selected entries."""
    count = sequences * rows
    row_sequence = torch.arange(count, dtype=torch.int32).floor_divide(rows)
    positions = torch.full((count,), CONTEXT, dtype=torch.int32) + torch.arange(count, dtype=torch.int32) % rows

    def slots() -> list[Work]:
        states = torch.arange(sequences, dtype=torch.int32, device="cuda")
        return [partial(run_window_slots, positions.cuda(), row_sequence.cuda(), states, window=WINDOW, ring=134)]

    def entries() -> list[Work]:
        selected = torch.randint(CONTEXT, (count, SELECTED), dtype=torch.int32, device="cuda")
        table = torch.randint(1 << 15, (sequences, CONTEXT // 128), dtype=torch.int32, device="cuda")
        return [partial(run_entry_slots, selected, row_sequence.cuda(), table, rows_per_block=128)]

    shape = f"{sequences} x {rows} rows"
    written = count * WINDOW * 4.0
    yield Measurement(group="metadata", name="window_slots", shape=shape, bytes=written, flop=0.0, make=slots)
    moved = count * SELECTED * 12.0
    yield Measurement(group="metadata", name="entry_slots", shape=shape, bytes=moved, flop=0.0, make=entries)


def _error(got: Tensor, expected: Tensor) -> float:
    """Distance of two results relative to the second one."""
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()
