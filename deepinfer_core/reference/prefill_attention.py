"""Sparse attention of prompt rows on the CPU.

Neighbouring queries list nearly the same window rows, so a few queries at a time attend to the whole span of rows
that any of them lists, as one dense product with a mask. Where rows lie far apart, each query gathers its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.reference.attention import HIDDEN, softmax_beside_sink
from deepinfer_core.reference.rounding import constant

_NEIGHBOURS = 64
"""Queries that share a span."""
_WASTE = 3
"""A span may have so many times the rows that one query lists; beyond that, gathering is cheaper."""


def run_sparse_prefill(
    query: Tensor,
    window_rows: Tensor,
    window_indices: Tensor,
    sink: Tensor,
    context_rows: Tensor | None = None,
    context_indices: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_prefill``; no query lists a row twice."""
    del plan
    sources = [_Source(window_rows, window_indices)]
    if context_rows is not None and context_indices is not None:
        sources.append(_Source(context_rows, context_indices))
    result = torch.empty_like(query, dtype=TORCH_DTYPES[out], memory_format=torch.contiguous_format)
    for group, start in enumerate(range(0, len(query), _NEIGHBOURS)):
        rows = slice(start, start + _NEIGHBOURS)
        keys = [source.keys(group, rows) for source in sources]
        result[rows] = _attend(query[rows].float() * constant(scale), keys, sink, round_probabilities)
    return result


def _attend(query: Tensor, keys: list[_Span | _Gathered], sink: Tensor, round_probabilities: bool) -> Tensor:
    """Scaled queries ``[t, N, D]`` over the keys of all sources together."""
    counts = [part.mask.shape[1] for part in keys]
    logits = query.new_empty(*query.shape[:2], sum(counts) + 1)
    for part, place in zip(keys, logits[..., :-1].split(counts, -1), strict=True):
        torch.add(part.dots(query), part.mask.unsqueeze(1), out=place)
    weights = softmax_beside_sink(logits, sink, round_probabilities=round_probabilities)
    first, *others = [part.weigh(share) for part, share in zip(keys, weights.split(counts, -1), strict=True)]
    for other in others:
        first.add_(other)
    return first


class _Source:
    """Rows that queries list, and how each group of neighbouring queries reaches its own."""

    def __init__(self, rows: Tensor, indices: Tensor) -> None:
        self._rows, self._indices = rows.float(), indices
        self._spans = _spans(indices)
        # A span shows a query rows that it does not list; NaN in one of those would come through the mask.
        self._widest = _WASTE * indices.shape[1] if bool(self._rows.sum().isfinite()) else 0
        self._with_none = pad(self._rows, (0, 0, 0, 1))

    def keys(self, group: int, queries: slice) -> _Span | _Gathered:
        """The keys of one group of queries."""
        indices, (first, last) = self._indices[queries], self._spans[group]
        width = last - first
        if 0 < width <= self._widest:
            place = (indices - first).masked_fill_(indices < 0, width).long()
            mask = torch.full((len(indices), width + 1), -HIDDEN).scatter_(1, place, 0.0)
            return _Span(self._rows[first:last], mask[:, :-1])
        missing = indices < 0
        listed = indices.masked_fill(missing, len(self._rows))
        keys = self._with_none.index_select(0, listed.flatten()).unflatten(0, indices.shape)
        return _Gathered(keys, missing.float().mul_(-HIDDEN))


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows ``[n, D]`` for all queries of a group, and what is added to each logit ``[t, n]``."""

    rows: Tensor
    mask: Tensor

    def dots(self, query: Tensor) -> Tensor:
        return torch.mm(query.flatten(0, 1), self.rows.t()).unflatten(0, query.shape[:2])

    def weigh(self, weights: Tensor) -> Tensor:
        return torch.mm(weights.flatten(0, 1), self.rows).unflatten(0, weights.shape[:2])


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Rows ``[t, n, D]`` of each query of a group, zeros for none, and what is added to each logit ``[t, n]``."""

    rows: Tensor
    mask: Tensor

    def dots(self, query: Tensor) -> Tensor:
        return torch.bmm(query, self.rows.transpose(1, 2))

    def weigh(self, weights: Tensor) -> Tensor:
        return torch.bmm(weights, self.rows)


def _spans(indices: Tensor) -> list[tuple[int, int]]:
    """First listed row, and one past the last, of every group of neighbours."""
    if not indices.numel():
        return [(0, 0)] * -(-len(indices) // _NEIGHBOURS)
    largest = torch.iinfo(indices.dtype).max
    missing = -len(indices) % _NEIGHBOURS
    first = pad(indices.masked_fill(indices < 0, largest).amin(1), (0, missing), value=largest)
    last = pad(indices.amax(1) + 1, (0, missing))
    groups = (-1, _NEIGHBOURS)
    return list(
        zip(first.unflatten(0, groups).amin(1).tolist(), last.unflatten(0, groups).amax(1).tolist(), strict=True)
    )
