"""Row-wise ops at the released sizes: norm, quantise, rotate and store, caches, compressor, n-gram memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import Measurement
from row_inputs import (
    HIDDEN,
    RING_ROWS,
    cache_of,
    differing_bytes,
    distinct_slots,
    integers,
    normal,
    record_bytes,
    relative_error,
    rotated,
)
from torch import Tensor
from torch.nn import functional

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.engram.ngram_context import ngram_context
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.kv_cache.store import copy_blocks, load, store
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.ops.quantize.rounding import quantize_rows
from deepinfer_core.tensor import Cache, QuantTensor
from deepinfer_cuda.ops import TABLE

_EPS = 1e-20
_STREAMS = 4
_COLUMNS = 24
_TABLE_ROWS = 1 << 22
_ROTARY = 64

Make = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
"""Fresh arguments of one call."""


def measurements() -> Iterator[Measurement]:
    """Every op at 1, 256 and 8192 rows."""
    for rows in (1, 256, 8192):
        yield from norms(rows)
        yield from formats(rows)
        yield from caches(rows)
        yield from _compressor(rows)
        yield from _memory(rows)
    yield _copy(64)


def _measure(
    op: Any, name: str, rows: int, num_bytes: float, make: Make, *, tolerance: float = 0.0, written: int | None = None,
    peer: Callable[..., Any] | None = None,
) -> Measurement:  # fmt: skip
    """One op: timed on rotated inputs, and compared with its reference on this GPU.

    Args:
        op: The op.
        name: Row of the table.
        rows: Rows of the call.
        num_bytes: Read and written.
        make: Arguments of a call.
        tolerance: 0 compares bytes; else the largest relative error, or the share of bytes that may differ when
            something is written in place.
        written: Position of the argument that is written in place, if there is one.
        peer: torch's equivalent, called with the arguments.
    """
    run = TABLE.of(op)[0].run
    group = "engram" if op.family == "engram" else "rows"

    def work(function: Callable[..., Any]) -> Callable[[], Any]:
        args, attributes = make()
        return lambda: function(*args, **attributes)

    def check() -> float:
        torch.manual_seed(rows)
        mine = make()
        torch.manual_seed(rows)
        theirs = make()
        actual, expected = run(*mine[0], **mine[1]), op.reference(*theirs[0], **theirs[1])
        found = [(actual, expected)] if actual is not None else []
        found += [(mine[0][written], theirs[0][written])] if written is not None else []
        compare = relative_error if tolerance and written is None else differing_bytes
        return max(compare(a, b) for a, b in found)

    return Measurement(
        group=group,
        name=name,
        shape=f"rows={rows}",
        bytes=num_bytes,
        flop=0.0,
        make=rotated(lambda: work(run), num_bytes),
        peer=rotated(lambda: work(peer), num_bytes) if peer else None,
        target=0.7 if rows == 8192 and group == "rows" else 0.0,
        check=check,
        tolerance=tolerance,
    )


def norms(rows: int) -> Iterator[Measurement]:
    """Norms, alone and with quantisation."""
    for width in (HIDDEN, 1280, 512):
        yield _measure(
            rms_norm, f"rms_norm {width}", rows, rows * width * 4 + width * 2,
            lambda width=width: ((normal(rows, width), normal(width)), {"eps": _EPS}),
            tolerance=4e-3, peer=lambda x, weight, eps: functional.rms_norm(x, x.shape[1:], weight, eps),
        )  # fmt: skip
    yield _measure(
        rms_norm_quantize, f"norm_quantize {HIDDEN}", rows, rows * HIDDEN * (3 + 1 / 32) + HIDDEN * 2,
        lambda: ((normal(rows, HIDDEN), normal(HIDDEN)), {"eps": _EPS, "format": "mxfp8"}),
        tolerance=1e-2, peer=lambda x, weight, eps, format: _to_e4m3(functional.rms_norm(x, x.shape[1:], weight, eps)),
    )  # fmt: skip


def formats(rows: int) -> Iterator[Measurement]:
    """To quantised formats and back."""
    for format, shape in (("mxfp8", (rows, HIDDEN)), ("mxfp4", (rows, 32, 128)), ("fp4_e4m3", (rows, 512))):
        count = float(torch.Size(shape).numel())
        stored = count * (FORMATS[format].record_bytes(512) / 512)
        yield _measure(
            quantize, f"quantize {format}", rows, count * 2 + stored,
            lambda shape=shape, format=format: ((normal(*shape),), {"format": format}),
            peer=lambda x, format: _to_e4m3(x),
        )  # fmt: skip
        yield _measure(
            dequantize, f"dequantize {format}", rows, count * 2 + stored,
            lambda shape=shape, format=format: ((quantize_rows(normal(*shape), FORMATS[format]),), {"out": "bf16"}),
        )  # fmt: skip


def _to_e4m3(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn)


def caches(rows: int) -> Iterator[Measurement]:
    """Into caches and back."""

    def stored(kind: str) -> tuple[Tensor, Tensor, Cache]:
        cache = cache_of(kind, rows)
        return normal(rows, cache.width), distinct_slots(rows, cache), cache

    def projected(kind: str) -> tuple[Any, ...]:
        x, slots, cache = stored(kind)
        norm = None if kind == "main" else normal(cache.width)
        return (x, integers(8192, rows), _angles(), slots, cache, norm)

    def window() -> tuple[Any, ...]:
        cache = cache_of("window", rows + 127)
        slots = distinct_slots(rows + 127, cache)
        return (normal(rows, 512), normal(512), integers(8192, rows), _angles(), slots[:127], slots[127:], cache)

    for kind, width in (("window", 512), ("main", 512), ("index", 128)):
        record = record_bytes(kind) + 4
        yield _measure(
            store, f"store {kind}", rows, rows * (2 * width + record), lambda kind=kind: (stored(kind), {}), written=2
        )
        yield _measure(
            load, f"load {kind}", rows, rows * (2 * width + record),
            lambda kind=kind: (stored(kind)[1:], {"out": "bf16"}),
        )  # fmt: skip
        yield _measure(
            rotate_store, f"rotate_store {kind}", rows, rows * (2 * width + record + 4 * _ROTARY + 4),
            lambda kind=kind: (projected(kind), {"eps": _EPS}), tolerance=5e-3, written=4,
        )  # fmt: skip
    moved = rows * (2 * 512 + 532 + 4 * _ROTARY + 4 + 1024) + 127 * (532 + 1024)
    yield _measure(
        extend_window, "extend_window", rows, moved, lambda: (window(), {"eps": _EPS, "out": "bf16"}),
        tolerance=1e-2, written=6,
    )  # fmt: skip


def _angles() -> Tensor:
    angle = torch.rand(8192, _ROTARY // 2, device="cuda") * 6.28
    return torch.cat((angle.cos(), angle.sin()), -1)


def _compressor(rows: int) -> Iterator[Measurement]:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        sequences = 1 if rows == 8192 else rows
        gate_value = normal(rows, 1024, dtype=torch.float32)
        length = rows // sequences
        row = torch.arange(rows, device="cuda", dtype=torch.int32)
        positions = 2049 + row % length
        contexts = torch.full((sequences,), 2049 + length, device="cuda", dtype=torch.int32)
        slots = torch.arange(1, sequences + 1, device="cuda", dtype=torch.int32)
        ring = normal(sequences + 1, RING_ROWS, 2, 512, dtype=torch.float32)
        tensors = (*gate_value.chunk(2, -1), positions, row // length, slots, contexts, ring)
        return tensors, {"out": "bf16"}

    sequences = 1 if rows == 8192 else rows
    kept = min(rows, RING_ROWS * sequences)
    moved = rows * (4096 + 1024 + 8) + kept * 4096 + sequences * (4096 + 8)
    yield _measure(compress_pairs, "compress_pairs", rows, moved, make, tolerance=5e-5, written=6)


def _memory(rows: int) -> Iterator[Measurement]:
    def contexts() -> tuple[Any, ...]:
        ids, row = integers(99092, rows), torch.arange(rows, device="cuda", dtype=torch.int32)
        return ids, 100 + row, row * 0, integers(99092, 1, 3)

    def hashed() -> tuple[Any, ...]:
        context = integers(99092, rows, 4)
        multipliers = integers(1 << 45, 4, dtype=torch.int64) * 2 + 1
        primes = integers(500_000, _COLUMNS, dtype=torch.int64) * 2 + 15_000_001
        return context, context[:, 0].clone(), multipliers, primes, primes.cumsum(0) - primes

    def table() -> tuple[Any, ...]:
        return integers(_TABLE_ROWS, rows, _COLUMNS), _TABLES[0]

    def gated() -> tuple[Any, ...]:
        memory = normal(rows, (_STREAMS + 1) * HIDDEN)
        return normal(rows, _STREAMS, HIDDEN), memory, normal(_STREAMS, HIDDEN), normal(_STREAMS, HIDDEN)

    settings = {"max_ngram": 4, "pad_id": 2}
    yield _measure(ngram_context, "ngram_context", rows, rows * 28, lambda: (contexts(), settings))
    yield _measure(hash_rows, "hash_rows", rows, rows * (20 + 4 * _COLUMNS), lambda: (hashed(), {}))
    _TABLES[:] = [_engram_table()]
    yield _measure(
        lookup, "lookup", rows, rows * _COLUMNS * (4 + 2 * 264), lambda: (table(), {}),
        peer=lambda rows, table: table.data.view(torch.uint8)[rows.flatten().long()],
    )  # fmt: skip
    _TABLES.clear()
    yield _measure(
        gate, "gate", rows, rows * HIDDEN * 2 * (3 * _STREAMS + 1) + 4 * _STREAMS * HIDDEN,
        lambda: (gated(), {"eps": _EPS}), tolerance=4e-3,
    )  # fmt: skip


_TABLES: list[QuantTensor] = []
"""The n-gram memory while it is measured: one for all works, larger than L2."""


def _engram_table() -> QuantTensor:
    data = torch.randint(120, (_TABLE_ROWS, 256), device="cuda", dtype=torch.uint8).view(torch.float8_e4m3fn)
    return QuantTensor(data, torch.full((_TABLE_ROWS, 8), 127, device="cuda", dtype=torch.uint8), "mxfp8")


def _copy(pairs: int) -> Measurement:
    """Blocks of one MiB."""

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        pool = torch.randint(256, (2 * pairs + 1, 1 << 20), device="cuda", dtype=torch.uint8)
        order = (torch.randperm(2 * pairs, device="cuda") + 1).to(torch.int32).view(-1, 2)
        return (pool, order), {}

    def peer(pool: Tensor, order: Tensor) -> None:
        pool.index_copy_(0, order[:, 1].long(), pool.index_select(0, order[:, 0].long()))

    return _measure(copy_blocks, "copy_blocks 1MiB", pairs, 2.0 * pairs * (1 << 20), make, written=0, peer=peer)
