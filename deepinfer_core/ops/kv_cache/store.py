"""Write rows into a cache, read them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.kv_cache.records import read_records, write_records
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import Cache

CACHE_FORMATS = ("mxfp8", "mxfp4", "fp4_e4m3")


@op("kv_cache.store", tolerance=Tolerance.exact(), mutates=("cache",))
def store(
    rows: Annotated[Tensor, Shape("R", "D"), Dtypes("bf16", "f32", "f64")],
    slots: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    cache: Annotated[Cache, Shape("M", "P", "D"), Formats(*CACHE_FORMATS)],
) -> None:
    """Quantise rows to the cache's format and write each into its slot.

    Args:
        rows: Already normed and rotated.
        slots: Flat slot of each row, ``block * P + offset``; -1 skips the row (padding of a captured
            graph). Slots of rows that are not skipped are distinct and not in the dummy block 0.
        cache: Written in place; slots not named keep their bytes.

    Note:
        Slot values are not checked on the device: the scheduler guarantees ``-1 <= slot < M * P``.
    """
    write_records(cache, slots, quantize_rows(rows, FORMATS[cache.format]))


@op("kv_cache.load", tolerance=Tolerance.exact(), row_axis="R")
def load(
    slots: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    cache: Annotated[Cache, Shape("M", "P", "D"), Formats(*CACHE_FORMATS)],
    *,
    out: str,
) -> Tensor:
    """Values of cached rows in the element type ``out``; slot -1 gives a zero row."""
    rows = dequantize_values(read_records(cache, slots.clamp_min(0)), TORCH_DTYPES[out])
    return torch.where((slots < 0).unsqueeze(-1), torch.zeros((), dtype=rows.dtype, device=rows.device), rows)


@op("kv_cache.copy_blocks", tolerance=Tolerance.exact(), mutates=("pool",))
def copy_blocks(
    pool: Annotated[Tensor, Shape("M", "_"), Dtypes("u8")],
    pairs: Annotated[Tensor, Shape("R", 2), Dtypes("i32")],
) -> None:
    """Copy whole blocks (or state slots) of all layers: ``pool[destination] = pool[source]``.

    Args:
        pool: Opaque bytes, written in place.
        pairs: ``(source, destination)``; destination 0 copies nothing. Destinations are distinct, and none is also
            a source.
    """
    source, destination = pairs.long().unbind(1)
    pool[destination] = pool[torch.where(destination == 0, destination, source)]


def draw_cache(draw: Draw, format: str, *, filled: bool = True, padding: int = 0) -> Cache:
    """A cache of axes M, P, D for cases, with random valid contents."""
    blocks, rows, width = draw.sizes["M"], draw.sizes["P"], draw.sizes["D"]
    record = FORMATS[format].record_bytes(width)
    storage = draw.integers(0, 256, blocks, rows * record + padding, dtype="u8")
    cache = Cache(storage, format, width, rows, sectioned=format == "mxfp4")
    if filled:
        slots = torch.arange(blocks * rows, dtype=torch.int32)
        write_records(cache, slots, quantize_rows(draw.normal(blocks * rows, width, dtype="f32"), FORMATS[format]))
    return cache


def _inputs(format: str, *, skip: bool = True) -> Callable[[Draw], dict[str, Any]]:
    """Shuffled slots outside block 0, every third one skipped."""

    def make(draw: Draw) -> dict[str, Any]:
        slots = draw.distinct((draw.sizes["M"] - 1) * draw.sizes["P"], draw.sizes["R"]) + draw.sizes["P"]
        if skip:
            slots[::3] = -1
        return {"slots": slots.to(torch.int32), "cache": draw_cache(draw, format, padding=32)}

    return make


@store.cases
def _store_cases() -> Iterator[Case]:
    for format in CACHE_FORMATS:
        yield Case(f"{format}_shuffled", R=20, M=4, P=8, D=128, make=_inputs(format, skip=False), required=True)
        yield Case(f"{format}_skipped_slots", R=20, M=4, P=8, D=64, make=_inputs(format), required=True)
        yield Case(f"{format}_f32", R=5, M=4, P=8, D=64, make=_inputs(format), dtype="f32")
    yield Case("no_rows", R=0, M=2, P=4, D=64, make=_inputs("mxfp8"), required=True)
    yield Case("ring", R=6, M=3, P=70, D=128, make=_inputs("mxfp8"))
    yield ErrorCase(
        "slots",
        R=2,
        M=3,
        P=4,
        D=32,
        make=_inputs("mxfp8"),
        stretch=("slots", "R"),
        raises=ShapeError,
        match="slots has R=3",
    )
    yield ErrorCase(
        "width",
        R=2,
        M=3,
        P=4,
        D=32,
        make=_inputs("mxfp8"),
        stretch=("rows", "D"),
        raises=ShapeError,
        match="cache has D=32",
    )


@load.cases
def _load_cases() -> Iterator[Case]:
    for format in CACHE_FORMATS:
        yield Case(f"{format}_skipped_slots", R=20, M=4, P=8, D=128, out="bf16", make=_inputs(format), required=True)
        yield Case(f"{format}_to_f32", R=7, M=4, P=8, D=64, out="f32", make=_inputs(format))
    yield Case("no_rows", R=0, M=2, P=4, D=64, out="bf16", make=_inputs("mxfp8"), required=True)
    yield ErrorCase(
        "slots_int64",
        R=2,
        M=3,
        P=4,
        D=32,
        out="bf16",
        make=_inputs("mxfp8"),
        spoil=lambda a: a.update(slots=a["slots"].long()),
        raises=DtypeError,
        match="i64",
    )


@copy_blocks.cases
def _copy_cases() -> Iterator[Case]:
    def make(draw: Draw) -> dict[str, Any]:
        order = draw.distinct(draw.sizes["M"] - 1, 2 * draw.sizes["R"]) + 1
        pairs = order.reshape(-1, 2)
        pairs[-1:, 1] = 0
        return {"pool": draw.integers(0, 256, "M", 96, dtype="u8"), "pairs": pairs}

    yield Case("with_nothing_to_copy", M=12, R=4, make=make, required=True)
    yield Case("no_pairs", M=4, R=0, make=make, required=True)
    yield ErrorCase(
        "floats", M=4, R=1, make=make, spoil=lambda a: a.update(pool=a["pool"].float()), raises=DtypeError, match="f32"
    )
