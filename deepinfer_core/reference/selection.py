"""Which compressed entries each row attends to, on the CPU: keys beyond what a row can see are not even read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer_core.reference.chunks import row_chunks
from deepinfer_core.reference.index_scores import Scorer, block_keys, entry_keys, sequences
from deepinfer_core.reference.rounding import integer
from deepinfer_core.reference.top_k import first_columns, run_block_maximum, run_top_k
from deepinfer_core.tensor import Cache, QuantTensor


def run_index_scores(
    query: QuantTensor,
    head_weights: Tensor,
    keys: Cache,
    block_table: Tensor,
    row_sequence: Tensor,
    visible: Tensor,
    *,
    score_mode: str,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> Tensor:
    """``indexer.index_scores``."""
    del plan
    scorer = Scorer(query, head_weights, score_mode)
    width = block_table.shape[1] * keys.rows_per_block
    dtype = torch.bfloat16 if score_mode == "fma_chain" else torch.float32
    result = torch.full((len(visible), width), -torch.inf, dtype=dtype)
    seen = _seen(row_sequence, visible)
    for rows, scores in _scores(scorer, keys, block_table, row_sequence, seen, query_lengths):
        columns = torch.arange(scores.shape[1], dtype=torch.int32)
        hidden = columns >= seen[rows].unsqueeze(1)
        result[rows, : scores.shape[1]] = scores.masked_fill(hidden, -torch.inf)
    return result


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
    """``indexer.select_entries``; where every row selects all that it sees, nothing is scored."""
    del plan
    seen = _seen(row_sequence, visible)
    entries = first_columns(seen, k)
    size = candidate_block_size
    blocks = torch.floor_divide(seen + (size - 1), integer(size))
    candidates = first_columns(blocks, candidate_blocks) if candidate_blocks else None
    if _largest(seen) <= k and (candidates is None or _largest(blocks) <= candidate_blocks):
        return entries, candidates
    scorer = Scorer(query, head_weights, score_mode)
    for rows, scores in _scores(scorer, keys, block_table, row_sequence, seen, query_lengths):
        entries[rows] = run_top_k(scores, seen[rows], k=k)
        if candidates is not None:
            best, counts = run_block_maximum(scores, seen[rows], block_size=size)
            candidates[rows] = run_top_k(best, counts, k=candidate_blocks)
    return entries, candidates


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
    """``indexer.select_within_candidates``: decode rows read the keys of their candidates only."""
    del plan
    seen = _seen(row_sequence, visible)
    result = first_columns(seen, k)
    if _largest(seen) <= k:
        return result
    scorer = Scorer(query, head_weights, score_mode)
    offsets = torch.arange(candidate_block_size, dtype=torch.int32)
    entries = (candidates.unsqueeze(-1) * integer(candidate_block_size) + offsets).flatten(1)
    real = (candidates >= 0).repeat_interleave(candidate_block_size, 1).logical_and_(entries < seen.unsqueeze(1))
    entries.masked_fill_(~real, 0)
    counts = real.sum(-1, dtype=torch.int32)
    if query_lengths is None:
        scored = _candidate_scores(scorer, keys, entries, block_table.index_select(0, row_sequence.clamp_min(0)))
    else:
        scored = _picked(_scores(scorer, keys, block_table, row_sequence, seen, query_lengths), entries)
    for rows, scores in scored:
        chosen = run_top_k(scores, counts[rows], k=k)
        picked = entries[rows].gather(1, chosen.clamp_min(0).long())
        result[rows] = picked.masked_fill_(chosen < 0, -1)
    return result


Scored = Iterator[tuple[slice, Tensor]]
"""Rows and their scores, a few rows at a time."""


def _candidate_scores(scorer: Scorer, keys: Cache, entries: Tensor, blocks: Tensor) -> Scored:
    """Scores of each decode row's own entries."""
    for rows in row_chunks(len(entries), entries.shape[1] * keys.width // 4):
        yield rows, scorer(rows, entry_keys(keys, entries[rows], blocks[rows]))


def _picked(scored: Scored, entries: Tensor) -> Scored:
    """Of the scores of all entries, those of the entries listed for each row."""
    for rows, scores in scored:
        yield rows, scores.gather(1, entries[rows].long())


def _scores(
    scorer: Scorer,
    keys: Cache,
    block_table: Tensor,
    row_sequence: Tensor,
    seen: Tensor,
    query_lengths: tuple[int, ...] | None,
) -> Scored:
    """Scores of the entries that some row of the chunk sees; those that a row does not see are left in them."""
    if query_lengths is None:
        yield from _decode_scores(scorer, keys, block_table.index_select(0, row_sequence.clamp_min(0)), seen)
        return
    for sequence, first, last in sequences(query_lengths):
        width = _largest(seen[first:last])
        blocks = block_table[sequence, : -(-width // keys.rows_per_block)]
        own = block_keys(keys, blocks).flatten(0, 1)
        for chunk in row_chunks(last - first, 2 * width):
            rows = slice(first + chunk.start, min(first + chunk.stop, last))
            yield rows, scorer(rows, own[: _largest(seen[rows])])


def _decode_scores(scorer: Scorer, keys: Cache, blocks: Tensor, seen: Tensor) -> Scored:
    """Decode rows: each against the keys of its own sequence."""
    width = _largest(seen)
    blocks = blocks[:, : -(-width // keys.rows_per_block)]
    for rows in row_chunks(len(seen), width * keys.width // 4):
        own = block_keys(keys, blocks[rows].flatten()).unflatten(0, (-1, blocks.shape[1])).flatten(1, 2)
        yield rows, scorer(rows, own[:, :width])


def _seen(row_sequence: Tensor, visible: Tensor) -> Tensor:
    """Entries that each row sees; none for padding rows."""
    return visible.masked_fill(row_sequence < 0, 0)


def _largest(numbers: Tensor) -> int:
    return int(numbers.max()) if len(numbers) else 0
