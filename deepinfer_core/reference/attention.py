"""Sparse attention of decode rows and the output projection on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.chunks import map_rows
from deepinfer_core.reference.linear import group_maps, grouped_product
from deepinfer_core.reference.products import fewest_rows, pack_dense
from deepinfer_core.reference.records import read_rows
from deepinfer_core.reference.rotary import rotate_, turns, wide_copy
from deepinfer_core.reference.rounding import GRIDS, cast, constant, integer, round_rows, through
from deepinfer_core.tensor import Cache

HIDDEN = 3e38
"""Taken from the logit of a key that does not exist: nothing is left of its probability."""


def run_sparse_decode(
    query: Tensor,
    window: Cache,
    window_slots: Tensor,
    sink: Tensor,
    context: Cache | None = None,
    context_slots: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_decode``: every cached row is read once and serves as key and as value."""
    del plan
    parts = [(window, window_slots)]
    if context is not None and context_slots is not None:
        parts.append((context, context_slots))
    slots = torch.cat([listed for _, listed in parts], 1) if len(parts) > 1 else window_slots

    def work(query: Tensor, slots: Tensor, *listed: Tensor) -> Tensor:
        keys, start = query.new_empty(*slots.shape, query.shape[2], dtype=torch.float32), 0
        for (cache, _), part in zip(parts, listed, strict=True):
            read_rows(cache, part, into=keys[:, start : start + part.shape[1]])
            start += part.shape[1]
        dots = torch.bmm(query.float() * constant(scale), keys.transpose(1, 2))
        logits = dots.new_empty(*query.shape[:2], slots.shape[1] + 1)
        torch.add(dots, slots.bitwise_right_shift(integer(31)).unsqueeze(1), alpha=HIDDEN, out=logits[..., :-1])
        return torch.bmm(softmax_beside_sink(logits, sink, round_probabilities=round_probabilities), keys)

    width = 2 * slots.shape[1] * (query.shape[1] + query.shape[2])
    return map_rows(work, (query, slots, *(listed for _, listed in parts)), width, TORCH_DTYPES[out])


def softmax_beside_sink(logits: Tensor, sink: Tensor, *, round_probabilities: bool) -> Tensor:
    """Softmax of ``[t, N, n + 1]`` logits, whose last column becomes the sink of each head; its share is left out."""
    logits[..., -1] = sink
    weights = torch.softmax(logits, -1)
    return (weights.bfloat16().float() if round_probabilities else weights)[..., :-1]


def pack_output(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Dense copies: the map of every group ``[groups, in, rank]``, and the second map ``[in, out]``."""
    copies = pack_dense(weights, site)
    return {**copies, "output_a": group_maps(copies["output_a"], site.attributes["groups"])}


def run_project_output(
    attended: Tensor,
    positions: Tensor,
    table: Tensor,
    output_a: Tensor,
    output_b: Tensor,
    *,
    groups: int,
    quantize_input: bool,
    out: str,
) -> Tensor:
    """``attention.project_output`` with weights from :func:`pack_output`."""
    del groups
    grid, dtype = GRIDS["mxfp8"], TORCH_DTYPES[out]

    def work(attended: Tensor, turn: Tensor) -> Tensor:
        rows = through(rotate_(wide_copy(attended), turn), attended.dtype).flatten(1)
        if quantize_input:
            rows = round_rows(rows, grid)
        inner = cast(grouped_product(cast(rows, output_a.dtype), output_a), dtype)
        if quantize_input:
            inner = round_rows(inner.float(), grid)
        return torch.mm(cast(inner, output_b.dtype), output_b)

    turn = turns(positions, table).conj_physical()
    return map_rows(
        work, (attended, turn), 3 * attended.shape[1] * attended.shape[2], dtype, fewest=fewest_rows(output_a.dtype)
    )
