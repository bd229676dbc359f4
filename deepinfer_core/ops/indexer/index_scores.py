"""Scores of cached index keys, by which compressed entries are selected (spec attention/03 section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.attention.metadata import draw_step
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, op
from deepinfer_core.ops.kv_cache.records import read_records
from deepinfer_core.ops.kv_cache.store import draw_cache
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide
from deepinfer_core.tensor import Cache, QuantTensor

_CHAINS = 4
_SCORES = Tolerance.elementwise(
    "a bf16 step of one chain may flip", 0.02, bf16=(2**-5, 0.05), f32=(1e-4, 1e-4), f64=(1e-9, 1e-9)
)


@op("indexer.index_scores", tolerance=_SCORES)
def index_scores(
    query: Annotated[QuantTensor, Shape("T", "X", "D"), Formats("mxfp4")],
    head_weights: Annotated[Tensor, Shape("T", "X"), Dtypes("bf16", "f32", "f64")],
    keys: Annotated[Cache, Shape("M", "P", "D"), Formats("mxfp4")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    visible: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    score_mode: str,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> Tensor:
    """``sum_h weight[t, h] * relu(query[t, h] . key[j])`` for every visible entry ``j`` of the row's sequence.

    Args:
        query: Rotated index queries.
        head_weights: Weight of each index head.
        keys: Index keys of the layer's source.
        block_table: Blocks of each sequence.
        row_sequence: Sequence of each row; -1 for padding rows, which see nothing.
        visible: Entries that each row sees.
        score_mode: ``fma_chain``: heads c, c + 4, ... accumulate in chain c of bf16 multiply-adds, then
            chains 0 + 2 and 1 + 3 and their sum, bf16 result (DeepGEMM's order, which DeepInfer runs).
            ``wide``: a wide sum, not rounded.
        query_lengths: Rows per sequence, known on the host, in prefill (rows of a sequence are then
            contiguous and in batch order, without padding); None in decode.
        plan: What the implementation prepared for this step.

    Returns:
        ``[T, J * P]``: bf16 or wide; -inf where an entry is not visible. -0 does not occur.
    """
    del plan
    blocks, rows = block_table.shape[1], keys.rows_per_block
    width = blocks * rows
    offsets = torch.arange(rows, dtype=torch.int32, device=block_table.device)
    slots = (block_table[:, :, None] * rows + offsets).flatten(1)
    q = dequantize_values(query, wide(head_weights).dtype)
    if query_lengths is None:
        k = dequantize_values(read_records(keys, slots), q.dtype)[row_sequence.clamp_min(0).long()]
        scores = _combine_heads(torch.relu(q @ k.transpose(1, 2)), head_weights, score_mode)
    else:
        pieces = [_combine_heads(q.new_empty(0, q.shape[1], width), head_weights[:0], score_mode)]
        for sequence, part in enumerate(_parts(query_lengths)):
            k = dequantize_values(read_records(keys, slots[sequence]), q.dtype)
            dots = torch.relu(q[part].flatten(0, 1) @ k.T).unflatten(0, (-1, q.shape[1]))
            pieces.append(_combine_heads(dots, head_weights[part], score_mode))
        scores = torch.cat(pieces)
    column = torch.arange(width, dtype=torch.int32, device=scores.device)
    seen = (column < visible[:, None]) & (row_sequence >= 0)[:, None]
    return torch.where(seen, scores + 0.0, torch.full((), -torch.inf, dtype=scores.dtype, device=scores.device))


def _parts(lengths: tuple[int, ...]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _combine_heads(dots: Tensor, head_weights: Tensor, score_mode: str) -> Tensor:
    """``dots [t, X, S]`` after relu -> scores ``[t, S]``."""
    if score_mode == "wide":
        return torch.einsum("txs,tx->ts", dots, head_weights.to(dots.dtype))
    weight = head_weights.to(torch.bfloat16).to(dots.dtype)
    rounded = dots.to(torch.bfloat16).to(dots.dtype)
    chains: list[Tensor] = [torch.zeros_like(rounded[:, 0]) for _ in range(_CHAINS)]
    for head in range(rounded.shape[1]):
        step = rounded[:, head] * weight[:, head : head + 1] + chains[head % _CHAINS]
        chains[head % _CHAINS] = step.to(torch.bfloat16).to(dots.dtype)
    even, odd = (chains[0] + chains[2]).to(torch.bfloat16), (chains[1] + chains[3]).to(torch.bfloat16)
    return even + odd


def draw_index_step(
    starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0
) -> Callable[[Draw], dict[str, Any]]:
    """Queries, weights and keys of a step; needs axes T, X, D, J, P and M blocks."""

    def make(draw: Draw) -> dict[str, Any]:
        step = draw_step(draw, starts, lengths, padding)
        heads = quantize_rows(draw.normal("T", "X", "D", dtype="f32"), FORMATS["mxfp4"])
        visible = torch.where(step["row_sequence"] >= 0, step["positions"] + 1, 0).to(torch.int32)
        return {
            "query": heads,
            "head_weights": draw.normal("T", "X"),
            "keys": draw_cache(draw, "mxfp4"),
            "block_table": step["block_table"],
            "row_sequence": step["row_sequence"],
            "visible": visible,
        }

    return make


@index_scores.cases
def _cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"X": 4, "D": 64, "J": 4, "P": 8}
    for mode in ("fma_chain", "wide"):
        decode: dict[str, Any] = {"make": draw_index_step((3, 17, 30), (1, 4, 1)), "score_mode": mode}
        yield Case(f"{mode}_decode", T=6, B=3, M=13, required=mode == "fma_chain", **sizes, **decode)
        prefill: dict[str, Any] = {
            "make": draw_index_step((0, 9), (12, 20)),
            "score_mode": mode,
            "query_lengths": (12, 20),
        }
        yield Case(f"{mode}_prefill", T=32, B=2, M=9, required=mode == "fma_chain", **sizes, **prefill)
    yield Case(
        "padding_rows",
        T=5,
        B=2,
        M=9,
        make=draw_index_step((3, 17), (1, 1), 3),
        score_mode="fma_chain",
        required=True,
        **sizes,
    )
    yield Case("six_heads", T=2, B=1, M=5, make=draw_index_step((9,), (2,)), score_mode="fma_chain", **dict(sizes, X=6))
    yield Case("wide_f32", T=2, B=1, M=5, make=draw_index_step((9,), (2,)), score_mode="wide", dtype="f32", **sizes)
    yield Case("no_rows", T=0, B=0, M=5, make=draw_index_step((), ()), score_mode="fma_chain", required=True, **sizes)
    yield ErrorCase(
        "visible",
        T=1,
        B=1,
        M=5,
        make=draw_index_step((3,), (1,)),
        score_mode="wide",
        stretch=("visible", "T"),
        raises=ShapeError,
        match="T=2",
        **sizes,
    )
