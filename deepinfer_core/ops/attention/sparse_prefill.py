"""Sparse attention of prompt rows over gathered keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.attention.attend import attend
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

ATTENTION = Tolerance.elementwise(
    "probabilities are rounded relative to another maximum",
    0.002,
    bf16=(2**-6, 1e-2),
    f32=(2**-6, 4e-3),
    f64=(1e-9, 1e-10),
)
_ROWS_AT_ONCE = 256


@op("attention.sparse_prefill", tolerance=ATTENTION, row_axis="T")
def sparse_prefill(
    query: Annotated[Tensor, Shape("T", "N", "D"), Dtypes("bf16", "f32", "f64")],
    window_rows: Annotated[Tensor, Shape("Q", "D"), Dtypes("bf16", "f32", "f64")],
    window_indices: Annotated[Tensor, Shape("T", "W"), Dtypes("i32")],
    sink: Annotated[Tensor, Shape("N"), Dtypes("f32")],
    context_rows: Annotated[Tensor | None, Shape("A", "D"), Dtypes("bf16", "f32", "f64")] = None,
    context_indices: Annotated[Tensor | None, Shape("T", "S"), Dtypes("i32")] = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """Attend to the listed window rows and compressed rows; keys are also values.

    Args:
        query: Rotated queries.
        window_rows: Window history and current rows of all sequences, values as the caches hold them.
        window_indices: Rows of ``window_rows`` per query, -1 for none.
        sink: Extra logit per head.
        context_rows: Compressed entries of all sequences, or None in layers without them.
        context_indices: Rows of ``context_rows`` per query, -1 for none.
        scale: Factor of the logits.
        round_probabilities: See ``attend``.
        out: Element type of the result: wide, or that of the activations.
        plan: What the implementation prepared for this step.

    Returns:
        ``[T, N, D]``; zeros for a query without any valid key.
    """
    del plan
    pieces = [torch.empty(0, *query.shape[1:], dtype=TORCH_DTYPES[out], device=query.device)]
    for start in range(0, query.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        keys, valid = _gather(window_rows, window_indices[rows])
        if context_rows is not None and context_indices is not None:
            more, more_valid = _gather(context_rows, context_indices[rows])
            keys, valid = torch.cat((keys, more), 1), torch.cat((valid, more_valid), 1)
        pieces.append(
            attend(query[rows], keys, valid, sink, scale=scale, round_probabilities=round_probabilities).to(
                TORCH_DTYPES[out]
            )
        )
    return torch.cat(pieces)


def _gather(rows: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Listed rows ``[t, n, D]`` and which of them exist."""
    if not rows.shape[0]:
        return rows.new_zeros(*indices.shape, rows.shape[1]), torch.zeros_like(indices, dtype=torch.bool)
    return rows[indices.clamp_min(0).long()], indices >= 0


def draw_indices(draw: Draw, rows: int, width: int, available: int, *, none_rows: bool = True) -> Tensor:
    """Random ascending indices with -1 behind them; row 0 has none at all."""
    indices = torch.full((rows, width), -1, dtype=torch.int32)
    for row in range(rows):
        count = int(draw.integers(0 if none_rows else 1, min(width, available) + 1, 1))
        if row == 0 and none_rows:
            count = 0
        indices[row, :count] = draw.distinct(available, count).sort().values
    return indices


def _inputs(*, context: bool) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        sizes = draw.sizes
        made: dict[str, Any] = {"window_indices": draw_indices(draw, sizes["T"], sizes["W"], sizes["Q"])}
        if context:
            made["context_rows"] = draw.normal("A", "D")
            made["context_indices"] = draw_indices(draw, sizes["T"], sizes["S"], sizes["A"])
        return made

    return make


@sparse_prefill.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"scale": 64**-0.5, "round_probabilities": True, "out": "f32"}
    both: dict[str, Any] = {
        "Q": 40,
        "W": 16,
        "A": 50,
        "S": 8,
        "N": 4,
        "D": 64,
        "make": _inputs(context=True),
        **settings,
    }
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, required=True, **both)
    yield Case("window_only", T=9, Q=40, W=16, N=4, D=64, make=_inputs(context=False), required=True, **settings)
    yield Case("bf16_result", T=5, **dict(both, out="bf16"))
    yield Case("f32_unrounded", T=5, dtype="f32", **dict(both, round_probabilities=False))
    yield Case("more_rows_than_one_piece", T=300, Q=20, W=4, N=1, D=32, make=_inputs(context=False), **settings)
    yield ErrorCase("sink", T=2, stretch=("sink", "N"), raises=ShapeError, match="sink has N=5", **both)
    yield ErrorCase(
        "window_indices",
        T=2,
        stretch=("window_indices", "T"),
        raises=ShapeError,
        match="window_indices has T=3",
        **both,
    )
