"""Which compressed entries a decode row attends to, in compiled code (spec attention/03).

Score and column become one integer, larger for larger scores and then for smaller columns, so that no two are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.reference import selection
from deepinfer_core.reference.compiled import array, bits, kernel, narrowed, over_rows, tensor, widened
from deepinfer_core.reference.compiled_codes import Records, read_record
from deepinfer_core.reference.compiled_rows import dot
from deepinfer_core.reference.products import rows_of
from deepinfer_core.tensor import Cache, QuantTensor

_BF16 = np.empty(0, np.int16)
_LARGEST_BF16 = np.int32(0x7F7F0000)
_INFINITE = np.int32(0x7F800000)
_ALL_COLUMNS = np.int64((1 << 32) - 1)
_MAGNITUDE = np.int32(0x7FFFFFFF)


@kernel
def _ordered(score: Any) -> Any:
    """An int32 that orders like the score; +0 and -0 are equal."""
    pattern = bits(np.float32(score + np.float32(0.0)))
    return np.int32(pattern ^ ((pattern >> np.int32(31)) & _MAGNITUDE))


@kernel
def _rounded(value: Any) -> Any:
    return widened(narrowed(value, _BF16))


@kernel
def _score(query: Any, weights: Any, key: Any, is_chain: Any) -> Any:
    """Score of one key: a wide sum, or heads c, c + 4, ... in chain c of bf16 multiply-adds."""
    if not is_chain:
        total = np.float32(0.0)
        for head in range(len(weights)):
            total += max(dot(query[head], key), np.float32(0.0)) * widened(weights[head])
        return total
    a, b, c, d = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for head in range(len(weights)):
        dots = _rounded(max(dot(query[head], key), np.float32(0.0)))
        product = dots * _rounded(widened(weights[head]))
        chain = head % 4
        if chain == 0:
            a = _rounded(product + a)
        elif chain == 1:
            b = _rounded(product + b)
        elif chain == 2:
            c = _rounded(product + c)
        else:
            d = _rounded(product + d)
    return _rounded(_rounded(a + c) + _rounded(b + d))


@kernel
def _choose(keys: Any, count: Any, most: Any, chosen: Any) -> None:
    """Columns of the largest of ``count`` keys, ascending, then -1; whichever ``most`` are."""
    chosen[:] = -1
    threshold = np.partition(keys[:count], count - most)[count - most] if count > most else np.int64(-(1 << 63))
    place = 0
    for column in range(count):
        if keys[column] >= threshold:
            chosen[place] = column
            place += 1


@kernel
def _key(ordered: Any, column: Any) -> Any:
    return (np.int64(ordered) << np.int64(32)) + (_ALL_COLUMNS - np.int64(column))


@kernel
def _select_rows(
    query: Any,
    weights: Any,
    is_chain: Any,
    data: Any,
    layout: Any,
    group: Any,
    factors: Any,
    block_table: Any,
    row_sequence: Any,
    visible: Any,
    size: Any,
    chosen: Any,
    blocks: Any,
    first: Any,
    last: Any,
) -> None:
    per_block, width = layout[1], layout[6]
    entry, most = np.empty(width, np.float32), block_table.shape[1] * per_block
    keys, best = np.empty(most, np.int64), np.empty(most // size + 1, np.int64)
    for index in range(first, last):
        sequence = row_sequence[index]
        seen = visible[index] if sequence >= 0 else 0
        num_blocks = (seen + size - 1) // size
        if seen <= chosen.shape[1] and num_blocks <= max(blocks.shape[1], seen if not blocks.shape[1] else 0):
            for column in range(seen):
                keys[column] = _key(np.int32(0), column)
            for block in range(num_blocks):
                best[block] = _key(np.int32(0), block)
        else:
            for block in range(num_blocks):
                largest = np.int32(-(1 << 31))
                for column in range(block * size, min(block * size + size, seen)):
                    slot = block_table[sequence, column // per_block] * per_block + column % per_block
                    read_record(data, slot, layout, group, factors, entry)
                    ordered = _ordered(_score(query[index], weights[index], entry, is_chain))
                    keys[column] = _key(ordered, column)
                    largest = max(largest, ordered)
                newest = block == num_blocks - 1
                best[block] = _key(_INFINITE if newest else min(largest, _LARGEST_BF16), block)
        _choose(keys, seen, chosen.shape[1], chosen[index])
        if blocks.shape[1]:
            _choose(best, num_blocks, blocks.shape[1], blocks[index])


@kernel
def _select_within_rows(
    query: Any,
    weights: Any,
    is_chain: Any,
    data: Any,
    layout: Any,
    group: Any,
    factors: Any,
    block_table: Any,
    row_sequence: Any,
    visible: Any,
    size: Any,
    candidates: Any,
    chosen: Any,
    first: Any,
    last: Any,
) -> None:
    per_block, width = layout[1], layout[6]
    entry, most = np.empty(width, np.float32), candidates.shape[1] * size
    keys, entries = np.empty(most, np.int64), np.empty(most, np.int32)
    for index in range(first, last):
        sequence = row_sequence[index]
        seen, count = visible[index] if sequence >= 0 else 0, 0
        if seen <= chosen.shape[1]:
            chosen[index] = -1
            for column in range(seen):
                chosen[index, column] = column
        else:
            for place in range(candidates.shape[1]):
                start = candidates[index, place] * size
                for column in range(start, min(start + size, seen) if start >= 0 else start):
                    slot = block_table[sequence, column // per_block] * per_block + column % per_block
                    read_record(data, slot, layout, group, factors, entry)
                    keys[count] = _key(_ordered(_score(query[index], weights[index], entry, is_chain)), count)
                    entries[count] = column
                    count += 1
            _choose(keys, count, chosen.shape[1], chosen[index])
            for place in range(chosen.shape[1]):
                if chosen[index, place] >= 0:
                    chosen[index, place] = entries[chosen[index, place]]


def run_select_entries(
    query: QuantTensor,
    head_weights: Tensor,
    keys: Cache,
    block_table: Tensor,
    row_sequence: Tensor,
    visible: Tensor,
    *,
    score_mode: str,
    k: int,
    candidate_blocks: int = 0,
    candidate_block_size: int = 1,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> tuple[Tensor, Tensor | None]:
    """``indexer.select_entries``; prompts, whose rows share keys, are scored as matrices."""
    if query_lengths is not None:
        return selection.run_select_entries(
            query,
            head_weights,
            keys,
            block_table,
            row_sequence,
            visible,
            score_mode=score_mode,
            k=k,
            candidate_blocks=candidate_blocks,
            candidate_block_size=candidate_block_size,
            query_lengths=query_lengths,
            plan=plan,
        )
    shown = array(visible)
    chosen = np.empty((len(shown), k), np.int32)
    blocks = np.empty((len(shown), candidate_blocks), np.int32)
    inputs = _scored(query, head_weights, score_mode, keys)
    rows = (array(block_table), array(row_sequence), shown)
    work = _work(query, block_table, keys)
    over_rows(_select_rows, len(shown), work, *inputs, *rows, candidate_block_size, chosen, blocks)
    return tensor(chosen), tensor(blocks) if candidate_blocks else None


def run_select_within_candidates(
    query: QuantTensor,
    head_weights: Tensor,
    keys: Cache,
    block_table: Tensor,
    row_sequence: Tensor,
    visible: Tensor,
    candidates: Tensor,
    *,
    score_mode: str,
    k: int,
    candidate_block_size: int,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> Tensor:
    """``indexer.select_within_candidates``; prompts, whose rows share keys, are scored as matrices."""
    if query_lengths is not None:
        return selection.run_select_within_candidates(
            query,
            head_weights,
            keys,
            block_table,
            row_sequence,
            visible,
            candidates,
            score_mode=score_mode,
            k=k,
            candidate_block_size=candidate_block_size,
            query_lengths=query_lengths,
            plan=plan,
        )
    shown = array(visible)
    chosen = np.empty((len(shown), k), np.int32)
    inputs = _scored(query, head_weights, score_mode, keys)
    rows = (array(block_table), array(row_sequence), shown)
    work = _work(query, block_table, keys)
    over_rows(_select_within_rows, len(shown), work, *inputs, *rows, candidate_block_size, array(candidates), chosen)
    return tensor(chosen)


def _scored(query: QuantTensor, head_weights: Tensor, score_mode: str, keys: Cache) -> tuple[object, ...]:
    records = Records.of(keys)
    values = array(rows_of(query, torch.float32))
    is_chain = score_mode == "fma_chain"
    return values, array(head_weights), is_chain, records.bytes, records.layout, records.group, records.factors


def _work(query: QuantTensor, block_table: Tensor, keys: Cache) -> int:
    """Steps of a row that sees everything that its blocks hold."""
    return query.shape[1] * query.shape[2] * block_table.shape[1] * keys.rows_per_block // 4
