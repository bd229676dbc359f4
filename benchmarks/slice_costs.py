"""Bytes and FLOP that each op of a step must at least move and do, from the call itself.

Every input is read once and every result written once; of caches and tables only the rows that are named count, and
of experts only those that are hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.tensor import Cache, QuantTensor

Cost = tuple[float, float]
"""Bytes and FLOP."""
_FP8_WEIGHT = 1 + 1 / 1024
_FP4_WEIGHT = 0.5 + 1 / 32


def cost(op: str, arguments: tuple[Any, ...], result: Any, architecture: ModelArchitecture) -> Cost:
    """Bytes and FLOP of one call.

    Args:
        op: Name of the op.
        arguments: Positional arguments, weights not among them.
        result: What the call returned.
        architecture: Gives the sizes of weights.
    """
    count = _COSTS.get(op)
    if count is None:
        return _moved(*arguments, result), 0.0
    return count(arguments, result, architecture)


def _moved(*values: Any) -> float:
    """Bytes of plain and quantised tensors; caches count nothing here."""
    return float(sum(tensor.numel() * tensor.element_size() for value in values for tensor in _tensors(value)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, QuantTensor):
        yield value.data
        yield value.scale
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _record_bytes(cache: Cache) -> int:
    return FORMATS[cache.format].record_bytes(cache.width)


def _linear(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    x = arguments[0]
    rows, width, outputs = x.shape[0], x.shape[1], result.shape[1]
    item = _FP8_WEIGHT if isinstance(x, QuantTensor) or x.shape[1] == architecture.attention.query_rank else 2
    return _moved(x, result) + outputs * width * item, 2.0 * rows * width * outputs


def _logits(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    x = arguments[0]
    return _moved(x, result) + result.shape[1] * x.shape[1] * 2, 2.0 * x.shape[0] * x.shape[1] * result.shape[1]


def _project_output(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    attended, shape = arguments[0], architecture.attention
    rows, inner = attended.shape[0], shape.num_heads * shape.head_dim
    middle = shape.output_groups * shape.output_rank
    weights = middle * inner // shape.output_groups + result.shape[1] * middle
    return _moved(attended, result) + weights * _FP8_WEIGHT, 2.0 * rows * weights


def _experts(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    x, ids = arguments[0], arguments[1]
    hidden, inner = architecture.hidden_size, architecture.experts.inner_size
    hit = int(torch.unique(ids[ids >= 0]).numel())
    one = 3 * hidden * inner
    pairs = int((ids >= 0).sum())
    return _moved(x, ids, result) + hit * one * _FP4_WEIGHT + one * _FP8_WEIGHT, 2.0 * one * (pairs + x.shape[0])


def _route(arguments: tuple[Any, ...], result: Any, architecture: ModelArchitecture) -> Cost:
    x, experts = arguments[0], architecture.experts.num_experts
    return _moved(x, result) + experts * x.shape[1] * 4, 2.0 * x.shape[0] * x.shape[1] * experts


def _sparse_decode(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    query, window, window_slots = arguments[:3]
    keys, read = window_slots.shape[1], window_slots.numel() * _record_bytes(window)
    if len(arguments) > 4:
        keys += arguments[5].shape[1]
        read += arguments[5].numel() * _record_bytes(arguments[4])
    return _moved(query, result) + read, 4.0 * query.numel() * keys


def _sparse_prefill(arguments: tuple[Any, ...], result: Tensor, architecture: ModelArchitecture) -> Cost:
    query, window_indices = arguments[0], arguments[2]
    keys = window_indices.shape[1] + (arguments[5].shape[1] if len(arguments) > 4 else 0)
    return _moved(*arguments, result), 4.0 * query.numel() * keys


def _select(arguments: tuple[Any, ...], result: Any, architecture: ModelArchitecture) -> Cost:
    query, weights, keys, _, row_sequence, visible = arguments[:6]
    heads, width = query.shape[1], query.shape[2]
    seen = visible
    if len(arguments) > 6:
        seen = torch.minimum(visible, torch.full_like(visible, arguments[6].shape[1] * _candidate_size(architecture)))
    per_sequence = torch.zeros(int(row_sequence.max()) + 1, device=seen.device, dtype=torch.int64)
    per_sequence.scatter_reduce_(0, row_sequence.clamp_min(0).long(), seen.long(), "amax")
    read = (per_sequence if len(arguments) == 6 else seen).sum().item() * _record_bytes(keys)
    return _moved(query, weights, result) + read, 2.0 * seen.sum().item() * heads * width


def _candidate_size(architecture: ModelArchitecture) -> int:
    return architecture.indexer.candidate_block_size


def _rows_of_cache(index: int) -> Callable[[tuple[Any, ...], Any, ModelArchitecture], Cost]:
    """Ops that read or write one record for each slot named."""

    def count(arguments: tuple[Any, ...], result: Any, architecture: ModelArchitecture) -> Cost:
        cache = next(a for a in arguments if isinstance(a, Cache))
        return _moved(*arguments, result) + arguments[index].shape[0] * _record_bytes(cache), 0.0

    return count


def _lookup(arguments: tuple[Any, ...], result: Any, architecture: ModelArchitecture) -> Cost:
    return _moved(arguments, result) * 2, 0.0


_COSTS: dict[str, Callable[[tuple[Any, ...], Any, ModelArchitecture], Cost]] = {
    "linear.linear": _linear,
    "embedding.vocabulary_logits": _logits,
    "embedding.token_embedding": _lookup,
    "engram.lookup": _lookup,
    "attention.project_output": _project_output,
    "attention.sparse_decode": _sparse_decode,
    "attention.sparse_prefill": _sparse_prefill,
    "moe.expert_layer": _experts,
    "moe.route": _route,
    "indexer.select_entries": _select,
    "indexer.select_within_candidates": _select,
    "kv_cache.load": _rows_of_cache(0),
    "kv_cache.rotate_store": _rows_of_cache(0),
    "kv_cache.extend_window": _rows_of_cache(0),
}
