"""Sparse attention of decode rows over quantised caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError
from deepinfer_core.ops.attention.attend import attend
from deepinfer_core.ops.attention.sparse_prefill import ATTENTION, draw_indices
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.kv_cache.records import read_records
from deepinfer_core.ops.kv_cache.store import draw_cache
from deepinfer_core.ops.quantize.rounding import dequantize_values
from deepinfer_core.ops.wide import wide
from deepinfer_core.tensor import Cache


@op("attention.sparse_decode", tolerance=ATTENTION, row_axis="T")
def sparse_decode(
    query: Annotated[Tensor, Shape("T", "N", "D"), Dtypes("bf16", "f32", "f64")],
    window: Annotated[Cache, Shape("M", "P", "D"), Formats("mxfp8")],
    window_slots: Annotated[Tensor, Shape("T", "W"), Dtypes("i32")],
    sink: Annotated[Tensor, Shape("N"), Dtypes("f32")],
    context: Annotated[Cache | None, Shape("_", "_", "D"), Formats("fp4_e4m3", "mxfp8")] = None,
    context_slots: Annotated[Tensor | None, Shape("T", "S"), Dtypes("i32")] = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """Attend to cached window rows and cached compressed entries; keys are also values.

    The same numbers as ``attention.sparse_prefill`` gives for the same keys.

    Args:
        query: Rotated queries.
        window: Window ring of the layer; this step's rows are already in it.
        window_slots: Flat slots of the window per query, -1 for none.
        sink: Extra logit per head.
        context: Compressed entries of the layer's source, or None in layers without them.
        context_slots: Flat slots of the selected entries per query, -1 for none.
        scale: Factor of the logits.
        round_probabilities: See ``attend``.
        out: Element type of the result: wide, or that of the activations.
        plan: What the implementation prepared for this step.

    Returns:
        ``[T, N, D]``; zeros for a query without any valid key.
    """
    del plan
    keys, valid = _read(window, window_slots, wide(query).dtype)
    if context is not None and context_slots is not None:
        more, more_valid = _read(context, context_slots, keys.dtype)
        keys, valid = torch.cat((keys, more), 1), torch.cat((valid, more_valid), 1)
    return attend(query, keys, valid, sink, scale=scale, round_probabilities=round_probabilities).to(TORCH_DTYPES[out])


def _read(cache: Cache, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return dequantize_values(read_records(cache, slots.clamp_min(0)), dtype), slots >= 0


def _inputs(*, context: str) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        sizes = draw.sizes
        slots = sizes["M"] * sizes["P"]
        made: dict[str, Any] = {
            "window": draw_cache(draw, "mxfp8"),
            "window_slots": draw_indices(draw, sizes["T"], sizes["W"], slots),
        }
        if context:
            made["context"] = draw_cache(draw, context)
            made["context_slots"] = draw_indices(draw, sizes["T"], sizes["S"], slots)
        return made

    return make


@sparse_decode.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {
        "M": 3,
        "P": 20,
        "N": 4,
        "D": 64,
        "W": 16,
        "scale": 64**-0.5,
        "round_probabilities": True,
        "out": "f32",
    }
    both: dict[str, Any] = {**settings, "S": 8, "make": _inputs(context="fp4_e4m3")}
    for rows in (0, 1, 12):
        yield Case(f"{rows}_rows", T=rows, required=True, **both)
    yield Case("window_only", T=9, make=_inputs(context=""), required=True, **settings)
    yield Case("mxfp8_context", T=5, S=8, make=_inputs(context="mxfp8"), **settings)
    yield Case("f32_unrounded", T=5, dtype="f32", **dict(both, round_probabilities=False))
    yield ErrorCase(
        "slots_int64",
        T=2,
        spoil=lambda a: a.update(window_slots=a["window_slots"].long()),
        raises=DtypeError,
        match="i64",
        **both,
    )
