"""Slots, indices and hashes of a step in compiled code; definitions are at the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.reference.compiled import array, kernel, over_rows, tensor

if TYPE_CHECKING:
    from torch import Tensor


@kernel
def _window_rows(
    positions: Any, row_sequence: Any, state_slots: Any, ring: Any, slots: Any, stores: Any, first: Any, last: Any
) -> None:
    window = slots.shape[1]
    for index in range(first, last):
        slots[index] = -1
        stores[index] = -1
        if row_sequence[index] >= 0:
            position, base = positions[index], state_slots[row_sequence[index]] * ring
            start = max(position - window + 1, 0)
            for place in range(position - start + 1):
                slots[index, place] = base + (start + place) % ring
            stores[index] = base + position % ring


@kernel
def _listed_rows(
    positions: Any,
    row_sequence: Any,
    state_slots: Any,
    context_lengths: Any,
    query_lengths: Any,
    floors: Any,
    row_starts: Any,
    ring: Any,
    indices: Any,
    stores: Any,
    first: Any,
    last: Any,
) -> None:
    window, num_sequences = indices.shape[1], len(state_slots)
    for index in range(first, last):
        indices[index] = -1
        stores[index] = -1
        sequence = row_sequence[index]
        if sequence >= 0:
            position, end, floor = positions[index], context_lengths[sequence], floors[sequence]
            begin = end - query_lengths[sequence]
            start = max(position - window + 1, floor)
            for place in range(position - start + 1):
                if start + place >= begin:
                    row = num_sequences * window + row_starts[sequence] + start + place - begin
                else:
                    row = (sequence + 1) * window + start + place - begin
                indices[index, place] = row
            if position >= floor and position >= end - ring:
                stores[index] = state_slots[sequence] * ring + position % ring


@kernel
def _history_rows(
    state_slots: Any,
    context_lengths: Any,
    query_lengths: Any,
    floors: Any,
    ring: Any,
    slots: Any,
    first: Any,
    last: Any,
) -> None:
    window = slots.shape[1]
    for sequence in range(first, last):
        begin = context_lengths[sequence] - query_lengths[sequence] - window
        for place in range(window):
            position = begin + place
            known = position >= floors[sequence]
            slots[sequence, place] = state_slots[sequence] * ring + position % ring if known else -1


@kernel
def _entry_rows(
    positions: Any,
    row_sequence: Any,
    block_table: Any,
    store_from: Any,
    ratio: Any,
    per_block: Any,
    visible: Any,
    slots: Any,
    places: Any,
    first: Any,
    last: Any,
) -> None:
    for index in range(first, last):
        visible[index], slots[index], places[index] = 0, -1, 0
        if row_sequence[index] >= 0:
            tokens = positions[index] + 1
            visible[index] = tokens // ratio
            if tokens % ratio == 0 and positions[index] >= store_from[row_sequence[index]]:
                entry = positions[index] // ratio
                number = min(entry // per_block, block_table.shape[1] - 1)
                slots[index] = block_table[row_sequence[index], number] * per_block + entry % per_block
                places[index] = entry * ratio


@kernel
def _slot_rows(
    entries: Any, row_sequence: Any, block_table: Any, per_block: Any, slots: Any, first: Any, last: Any
) -> None:
    for index in range(first, last):
        sequence = max(row_sequence[index], 0)
        for place in range(entries.shape[1]):
            entry = entries[index, place]
            slots[index, place] = -1
            if entry >= 0:
                slots[index, place] = block_table[sequence, entry // per_block] * per_block + entry % per_block


@kernel
def _context_rows(
    ids: Any, positions: Any, row_sequence: Any, history: Any, pad_id: Any, result: Any, first: Any, last: Any
) -> None:
    for index in range(first, last):
        sequence = row_sequence[index]
        is_hidden, in_step = sequence < 0 or ids[index] < 0, 0
        result[index, 0] = pad_id if is_hidden else ids[index]
        for back in range(1, result.shape[1]):
            if index >= back and row_sequence[index - back] == sequence:
                token = ids[index - back]
                in_step += 1
            else:
                token = history[max(sequence, 0), back - 1 - in_step]
            is_hidden = is_hidden or token < 0 or positions[index] < back
            result[index, back] = pad_id if is_hidden else token


@kernel
def _hash_rows(
    context: Any, ids: Any, multipliers: Any, primes: Any, offsets: Any, result: Any, first: Any, last: Any
) -> None:
    heads = len(primes) // (context.shape[1] - 1)
    for index in range(first, last):
        mixed = np.int64(context[index, 0]) * multipliers[0]
        for size in range(1, context.shape[1]):
            mixed ^= np.int64(context[index, size]) * multipliers[size]
            for column in range((size - 1) * heads, size * heads):
                row = mixed % primes[column] + offsets[column]
                result[index, column] = -1 if ids[index] < 0 else row


def run_window_slots(
    positions: Tensor, row_sequence: Tensor, state_slots: Tensor, *, window: int, ring: int
) -> tuple[Tensor, Tensor]:
    """``attention.window_slots``."""
    rows = array(positions)
    slots, stores = np.empty((len(rows), window), np.int32), np.empty(len(rows), np.int32)
    over_rows(_window_rows, len(rows), window, rows, array(row_sequence), array(state_slots), ring, slots, stores)
    return tensor(slots), tensor(stores)


def run_window_indices(
    positions: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    context_lengths: Tensor,
    query_lengths: Tensor,
    window_start: Tensor | None = None,
    *,
    window: int,
    ring: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``attention.window_indices``."""
    rows, places, contexts, lengths = map(array, (positions, state_slots, context_lengths, query_lengths))
    floors = _limits(window_start, len(places))
    indices, stores = np.empty((len(rows), window), np.int32), np.empty(len(rows), np.int32)
    history = np.empty((len(places), window), np.int32)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    over_rows(_history_rows, len(places), window, places, contexts, lengths, floors, ring, history)
    inputs = (rows, array(row_sequence), places, contexts, lengths, floors, starts, ring)
    over_rows(_listed_rows, len(rows), window, *inputs, indices, stores)
    return tensor(indices), tensor(history).flatten(), tensor(stores)


def run_entry_metadata(
    positions: Tensor,
    row_sequence: Tensor,
    block_table: Tensor,
    store_from: Tensor | None = None,
    *,
    ratio: int,
    rows_per_block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``attention.entry_metadata``."""
    rows, table = array(positions), array(block_table)
    visible, slots, places = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
    inputs = (rows, array(row_sequence), table, _limits(store_from, len(table)), ratio, rows_per_block)
    over_rows(_entry_rows, len(rows), 8, *inputs, visible, slots, places)
    return tensor(visible), tensor(slots), tensor(places)


def _limits(given: Tensor | None, count: int) -> Any:
    """One position for each sequence, 0 where nobody gave one and at least."""
    return np.zeros(count, np.int32) if given is None else np.maximum(array(given), 0)


def run_entry_slots(entries: Tensor, row_sequence: Tensor, block_table: Tensor, *, rows_per_block: int) -> Tensor:
    """``attention.entry_slots``."""
    listed = array(entries)
    slots = np.empty_like(listed)
    inputs = (listed, array(row_sequence), array(block_table), rows_per_block)
    over_rows(_slot_rows, len(listed), 4 * listed.shape[1], *inputs, slots)
    return tensor(slots)


def run_ngram_context(
    compressed_ids: Tensor,
    positions: Tensor,
    row_sequence: Tensor,
    history: Tensor,
    *,
    max_ngram: int,
    pad_id: int,
) -> Tensor:
    """``engram.ngram_context``."""
    ids = array(compressed_ids)
    result = np.empty((len(ids), max_ngram), np.int32)
    inputs = (ids, array(positions), array(row_sequence), array(history), pad_id)
    over_rows(_context_rows, len(ids), 4 * max_ngram, *inputs, result)
    return tensor(result)


def run_hash_rows(
    context: Tensor, compressed_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor
) -> Tensor:
    """``engram.hash_rows``."""
    rows, columns = array(context), array(primes)
    result = np.empty((len(rows), len(columns)), np.int32)
    inputs = (rows, array(compressed_ids), array(multipliers), columns, array(offsets))
    over_rows(_hash_rows, len(rows), 8 * len(columns), *inputs, result)
    return tensor(result)
