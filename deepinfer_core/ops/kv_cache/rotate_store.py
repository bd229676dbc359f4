"""Norm, rotate and store: how a projected row becomes a cached key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, Use, composite
from deepinfer_core.ops.kv_cache.store import CACHE_FORMATS, draw_cache, load, store
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary, draw_table
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import Cache

_CODES = Tolerance.elementwise(
    "a code may flip where the rotated value lies on a boundary",
    0.005,
    bf16=(2**-3, 1e-3),
    f32=(2**-3, 1e-3),
    f64=(1e-9, 1e-10),
)


@composite("kv_cache.rotate_store", parts=(rms_norm, apply_rotary, store), tolerance=_CODES, mutates=("cache",))
def rotate_store(
    use: Use,
    rows: Annotated[Tensor, Shape("R", "D"), Dtypes("bf16", "f32", "f64")],
    positions: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    table: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    slots: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    cache: Annotated[Cache, Shape("M", "P", "D"), Formats(*CACHE_FORMATS)],
    norm_weight: Annotated[Tensor | None, Shape("D"), Dtypes("bf16", "f32")] = None,
    *,
    eps: float,
) -> None:
    """Norm each row (when a weight is given), rotate it by its position, quantise and store it.

    Used for decode window keys, index keys and compressed entries (whose norm happened before).

    Args:
        use: Turns a step into what is bound for it.
        rows: Projected rows.
        positions: Position of each row.
        table: Rotary table of the layer.
        slots: Slot of each row, -1 to skip it.
        cache: Written in place.
        norm_weight: Weight of the norm, or None.
        eps: Epsilon of the norm.
    """
    if norm_weight is not None:
        rows = use(rms_norm)(rows, norm_weight, eps=eps)
    rotated = use(apply_rotary)(rows.unsqueeze(1), positions, table).squeeze(1)
    use(store)(rotated, slots, cache)


@composite(
    "kv_cache.extend_window",
    parts=(rms_norm, apply_rotary, quantize, dequantize, load, store),
    tolerance=_CODES,
    mutates=("cache",),
)
def extend_window(
    use: Use,
    rows: Annotated[Tensor, Shape("T", "D"), Dtypes("bf16", "f32", "f64")],
    norm_weight: Annotated[Tensor, Shape("D"), Dtypes("bf16", "f32")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    table: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    history_slots: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    store_slots: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    cache: Annotated[Cache, Shape("M", "P", "D"), Formats("mxfp8")],
    *,
    eps: float,
    out: str,
) -> Tensor:
    """Window keys of prompt rows: norm, rotate, round as the cache does, behind the history from the ring.

    The history is read before the ring is written: a chunk longer than the ring's surplus overwrites slots
    that are still history (spec attention/04 section 4).

    Args:
        use: Turns a step into what is bound for it.
        rows: Projected rows of this step.
        norm_weight: Weight of the key norm.
        positions: Position of each row.
        table: Rotary table of the layer.
        history_slots: Ring slots of the history, -1 before the start of a sequence.
        store_slots: Ring slot of each row, -1 for rows that the ring would not keep.
        cache: The layer's ring, written in place.
        eps: Epsilon of the norm.
        out: Element type of the result.

    Returns:
        ``[R + T, D]``: history rows, then current rows, with the values that decode would read.
    """
    history = use(load)(history_slots, cache, out=out)
    normed = use(rms_norm)(rows, norm_weight, eps=eps)
    rotated = use(apply_rotary)(normed.unsqueeze(1), positions, table).squeeze(1)
    use(store)(rotated, store_slots, cache)
    current = use(dequantize)(use(quantize)(rotated, format=cache.format), out=out)
    return torch.cat((history, current))


def _store_inputs(format: str, *, norm: bool) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        slots = draw.distinct((draw.sizes["M"] - 1) * draw.sizes["P"], draw.sizes["R"]) + draw.sizes["P"]
        slots[::4] = -1
        made = {
            "positions": draw.integers(0, 40, "R"),
            "table": draw_table(draw, 40, 32),
            "slots": slots.to(torch.int32),
            "cache": draw_cache(draw, format),
        }
        return {**made, "norm_weight": draw.normal("D")} if norm else made

    return make


def _window_inputs(draw: Draw) -> dict[str, Any]:
    rows, history = draw.sizes["T"], draw.sizes["R"]
    slots = draw.distinct((draw.sizes["M"] - 1) * draw.sizes["P"], rows + history) + draw.sizes["P"]
    history_slots, store_slots = slots[:history].clone(), slots[history:].clone()
    history_slots[:2] = -1
    store_slots[:1] = -1
    return {
        "positions": draw.integers(0, 40, "T"),
        "table": draw_table(draw, 40, 32),
        "history_slots": history_slots.to(torch.int32),
        "store_slots": store_slots.to(torch.int32),
        "cache": draw_cache(draw, "mxfp8"),
    }


@rotate_store.cases
def _cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"M": 4, "P": 8, "D": 64, "eps": 1e-20}
    for format in CACHE_FORMATS:
        yield Case(f"{format}_normed", R=15, make=_store_inputs(format, norm=True), required=True, **sizes)
    yield Case("main_without_norm", R=9, make=_store_inputs("fp4_e4m3", norm=False), required=True, **sizes)
    yield Case("no_rows", R=0, make=_store_inputs("mxfp8", norm=True), required=True, **sizes)
    yield ErrorCase(
        "slots",
        R=2,
        make=_store_inputs("mxfp8", norm=True),
        stretch=("slots", "R"),
        raises=ShapeError,
        match="slots has R=3",
        **sizes,
    )


@extend_window.cases
def _window_cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"M": 5, "P": 8, "D": 64, "R": 8, "eps": 1e-20, "make": _window_inputs}
    yield Case("history_and_rows", T=11, out="bf16", required=True, **sizes)
    yield Case("f32", T=5, out="f32", dtype="f32", **sizes)
    yield Case("no_rows", T=0, out="bf16", **sizes)
    yield ErrorCase(
        "store_slots",
        T=2,
        out="bf16",
        stretch=("store_slots", "T"),
        raises=ShapeError,
        match="store_slots has T=3",
        **sizes,
    )
