"""From logits to tokens and drafts, in compiled code (spec model/09 section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.ops.speculation.confidence import LARGEST_LOGIT, MIN_TEMPERATURE
from deepinfer_core.reference.compiled import array, empty, kernel, over_rows, tensor
from deepinfer_core.reference.compiled_products import one_map, pack_maps
from deepinfer_core.reference.compiled_rows import dot, widen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from deepinfer_core.ops.limits import Site
    from deepinfer_core.reference.compiled_products import Packed


@kernel
def _greedy_rows(logits: Any, ids: Any, first: Any, last: Any) -> None:
    for index in range(first, last):
        row, place = logits[index], -1
        best = -np.inf
        for column in range(len(row)):
            value = row[column]
            if np.isnan(value):
                place = -1
                break
            if place < 0 or value > best:
                best, place = value, column
        ids[index] = place


@kernel
def _confidence_rows(
    hidden: Any,
    previous: Any,
    embedding: Any,
    weight: Any,
    temperature: Any,
    logits: Any,
    chances: Any,
    first: Any,
    last: Any,
) -> None:
    width, rank = hidden.shape[1], embedding.shape[1]
    row, head = np.empty(width + rank, np.float32), np.empty(width + rank, np.float32)
    widen(weight[0], head)
    for index in range(first, last):
        widen(hidden[index], row[:width])
        widen(embedding[previous[index]], row[width:])
        logit = dot(row, head)
        scaled = min(max(logit / temperature, np.float32(-LARGEST_LOGIT)), np.float32(LARGEST_LOGIT))
        logits[index] = logit
        chances[index] = np.float32(1.0) / (np.float32(1.0) + np.exp(-scaled))


@kernel
def _add_rows(base: Any, corrections: Any, first: Any, last: Any) -> None:
    """Add ``base`` to the corrections in place."""
    for index in range(first, last):
        for column in range(base.shape[1]):
            corrections[index, column] += base[index, column]


def run_greedy(logits: Tensor) -> Tensor:
    """``sampling.greedy``."""
    num_rows, vocab_size = logits.shape
    ids = np.empty(num_rows, np.int32)
    over_rows(_greedy_rows, num_rows, vocab_size, array(logits), ids)
    return tensor(ids)


def run_confidence(
    hidden: Tensor, previous: Tensor, embedding: Tensor, weight: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``speculation.confidence``."""
    num_rows, width = hidden.shape
    logits, chances = empty((num_rows,)), empty((num_rows,))
    inputs = (array(hidden), array(previous), array(embedding), array(weight))
    scale = np.float32(max(temperature, MIN_TEMPERATURE))
    over_rows(_confidence_rows, num_rows, 2 * width, *inputs, scale, logits, chances)
    return tensor(logits), tensor(chances)


def pack_markov(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """The table as it is, and the head as the map of a product."""
    return {"embedding": weights["embedding"], **pack_maps({"head": weights["head"]}, site)}


def run_markov_logits(base: Tensor, previous: Tensor, embedding: Tensor, head: Packed) -> Tensor:
    """``speculation.markov_logits`` with weights from :func:`pack_markov`."""
    rows = embedding[previous.long()].float()
    corrections = array(head.payload(rows, one_map(rows.shape[0])))
    over_rows(_add_rows, rows.shape[0], base.shape[1], array(base), corrections)
    return tensor(corrections)
