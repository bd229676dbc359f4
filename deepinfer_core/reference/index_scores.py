"""Scores of cached index keys on the CPU (spec attention/03 section 3)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.kv_cache.records import value_bytes
from deepinfer_core.reference.codes import decode
from deepinfer_core.reference.products import has_bf16_products, rows_of
from deepinfer_core.reference.records import read_rows
from deepinfer_core.reference.rounding import constant, integer
from deepinfer_core.tensor import Cache, QuantTensor

_CHAINS = 4


class Scorer:
    """Index queries of a step's rows against keys, in one of the two orders of summation.

    ``fma_chain`` is bit for bit the reference's: products of bf16 numbers are exact in float32, in which torch
    does the bf16 multiply-add, and the dot products are rounded to bf16 before it in either case.
    """

    def __init__(self, query: QuantTensor, head_weights: Tensor, score_mode: str) -> None:
        self._is_chain = score_mode == "fma_chain"
        dtype = torch.bfloat16 if self._is_chain and has_bf16_products() else torch.float32
        self._query = rows_of(query, dtype)
        weights = head_weights.bfloat16() if self._is_chain else head_weights.float()
        self._weights = weights.unsqueeze(-1)

    def __call__(self, rows: slice, keys: Tensor) -> Tensor:
        """Scores ``[t, n]``: bf16 of ``fma_chain``, float32 of ``wide``.

        Args:
            rows: Which rows of the step.
            keys: Float32 keys: ``[n, D]`` for all of these rows or ``[t, n, D]`` for each its own.
        """
        query, weights = self._query[rows], self._weights[rows]
        keys = keys.to(query.dtype).transpose(-1, -2)
        if keys.dim() == 3:
            dots = torch.bmm(query, keys)
        else:
            dots = torch.mm(query.flatten(0, 1), keys).unflatten(0, (-1, query.shape[1]))
        if not self._is_chain:
            return torch.bmm(weights.transpose(1, 2), dots.clamp_min_(0.0)).squeeze(1)
        return _chained(dots.bfloat16().clamp_min_(0.0), weights)


def _chained(dots: Tensor, weights: Tensor) -> Tensor:
    """Heads c, c + 4, ... accumulate in chain c; then chains 0 + 2 and 1 + 3, and their sum. -0 does not occur."""
    missing = -dots.shape[1] % _CHAINS if dots.shape[1] < _CHAINS else 0
    if missing:
        dots, weights = (torch.nn.functional.pad(t, (0, 0, 0, missing)) for t in (dots, weights))
    chains = dots[:, :_CHAINS] * weights[:, :_CHAINS]
    for head in range(_CHAINS, dots.shape[1], _CHAINS):
        heads = slice(head, head + _CHAINS)
        chains[:, : dots.shape[1] - head].addcmul_(dots[:, heads], weights[:, heads])
    halves = chains[:, :2] + chains[:, 2:]
    return (halves[:, 0] + halves[:, 1]).add_(constant(0.0))


def block_keys(cache: Cache, blocks: Tensor) -> Tensor:
    """Float32 keys ``[n, rows per block, D]`` of whole blocks.

    Args:
        cache: Index keys; all values of a block stand before its scales.
        blocks: ``[n]`` int32.
    """
    rows, values = cache.rows_per_block, value_bytes(cache)
    spec = FORMATS[cache.format]
    used = cache.storage[:, : rows * spec.record_bytes(cache.width)].index_select(0, blocks)
    data, scales = used.split((rows * values, used.shape[1] - rows * values), 1)
    return decode(data.unflatten(1, (rows, values)), scales.unflatten(1, (rows, -1)), spec)


def entry_keys(cache: Cache, entries: Tensor, blocks: Tensor) -> Tensor:
    """Float32 keys ``[t, n, D]`` of entries of each row's own sequence.

    Args:
        cache: Index keys.
        entries: ``[t, n]`` int32, none of them negative.
        blocks: ``[t, J]``: block table of each row's sequence.
    """
    rows = integer(cache.rows_per_block)
    block = torch.floor_divide(entries, rows)
    return read_rows(cache, (blocks.gather(1, block.long()) - block) * rows + entries)


def sequences(query_lengths: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Index, first row and one past the last row of each sequence of a prefill step."""
    start = 0
    for sequence, length in enumerate(query_lengths):
        yield sequence, start, start + length
        start += length
