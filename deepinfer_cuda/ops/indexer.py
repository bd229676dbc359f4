"""``indexer``: scores of cached index keys, and the selection of entries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.ops.indexer.index_scores import index_scores
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.indexer.top_k import block_maximum, candidate_scores, expand_candidates, top_k
from deepinfer_core.ops.limits import Site, at_most, attribute_in, dtype_in, multiple_of, one_of
from deepinfer_core.tensor import Cache, QuantTensor
from deepinfer_cuda.indexing import (
    Candidates,
    Queries,
    Scores,
    find_maxima,
    launch_maxima,
    maxima_columns,
    score_rows,
    select_columns,
)
from deepinfer_cuda.kernels.candidate_scores import candidate_scores_kernel
from deepinfer_cuda.kernels.expand_candidates import expand_candidates_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.row_tiles import power_of_two
from deepinfer_cuda.scratch import SCRATCH_BYTES

_LEAST_ROWS = 8
"""Rows of a turn are a multiple of this."""
_SCORE_BYTES = 2
_GROUP_SIZE = 8
"""Blocks of so many entries have their maxima among those of the scores, where there are any."""
_COLUMNS = 1024
"""Columns of a program of the kernels that only move numbers."""


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
    del score_mode, plan
    queries = _queries(query, head_weights, block_table, row_sequence, visible, query_lengths)
    width = block_table.shape[1] * keys.rows_per_block
    values = torch.empty((len(visible), width), dtype=torch.bfloat16, device=visible.device)
    score_rows(queries, keys, Scores(values=values), fill=True)
    return values


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
    """``indexer.select_entries``: scores with their maxima in one launch, then a launch for each selection."""
    del score_mode, plan
    queries = _queries(query, head_weights, block_table, row_sequence, visible, query_lengths)
    width = block_table.shape[1] * keys.rows_per_block
    entries = torch.empty((len(visible), k), dtype=torch.int32, device=visible.device)
    candidates = entries.new_empty((len(visible), candidate_blocks)) if candidate_blocks else None
    for start, stop in _turns(len(visible), _row_bytes(width, candidate_block_size if candidate_blocks else 0)):
        part = queries.rows(start, stop)
        scores = Scores.empty(stop - start, width, visible.device)
        score_rows(part, keys, scores, fill=False)
        select_columns(scores, part.visible, entries[start:stop])
        if candidates is not None:
            _select_blocks(scores, part.visible, candidates[start:stop], candidate_block_size)
        del scores  # its room is that of the next turn
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
    """``indexer.select_within_candidates``: only the candidates' keys are read."""
    del score_mode, plan
    queries = _queries(query, head_weights, block_table, row_sequence, visible, query_lengths)
    picked = Candidates(blocks=candidates, size=candidate_block_size)
    width = candidates.shape[1] * candidate_block_size
    entries = torch.empty((len(visible), k), dtype=torch.int32, device=visible.device)
    for start, stop in _turns(len(visible), _SCORE_BYTES * width):
        part, chosen = queries.rows(start, stop), picked.rows(start, stop)
        # Candidates are few enough to be searched as they are: no maxima.
        values = torch.empty((stop - start, width), dtype=torch.bfloat16, device=visible.device)
        scores = Scores(values=values)
        score_rows(part, keys, scores, candidates=chosen, fill=False)
        select_columns(scores, part.visible, entries[start:stop], candidates=chosen)
        del scores, values
    return entries


def run_top_k(scores: Tensor, lengths: Tensor, *, k: int) -> Tensor:
    """``indexer.top_k``."""
    result = torch.empty((len(lengths), k), dtype=torch.int32, device=scores.device)
    found = Scores.of(scores)
    find_maxima(found, lengths)
    select_columns(found, lengths, result)
    return result


def run_block_maximum(scores: Tensor, lengths: Tensor, *, block_size: int) -> tuple[Tensor, Tensor]:
    """``indexer.block_maximum``."""
    num_rows, width = scores.shape
    best = torch.empty((num_rows, -(-width // block_size)), dtype=scores.dtype, device=scores.device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=scores.device)
    launch_maxima(scores, lengths, best, size=block_size, counts=counts)
    return best, counts


def run_candidate_scores(
    scores: Tensor, lengths: Tensor, candidates: Tensor, *, block_size: int
) -> tuple[Tensor, Tensor]:
    """``indexer.candidate_scores``."""
    rows, stride = rows_of(scores)
    chosen, chosen_stride = rows_of(candidates)
    num_rows, num_candidates = candidates.shape
    width = num_candidates * block_size
    compact = torch.empty((num_rows, width), dtype=scores.dtype, device=scores.device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=scores.device)
    launch(
        candidate_scores_kernel,
        (num_rows, max(-(-width // _COLUMNS), 1)),
        *(rows, lengths, chosen, compact, counts, stride, chosen_stride, width, num_candidates),
        SIZE=block_size,
        BLOCK=_COLUMNS,
        CANDIDATES=power_of_two(num_candidates),
    )
    return compact, counts


def run_expand_candidates(columns: Tensor, candidates: Tensor, *, block_size: int) -> Tensor:
    """``indexer.expand_candidates``."""
    rows, stride = rows_of(columns)
    chosen, chosen_stride = rows_of(candidates)
    num_rows, width = columns.shape
    result = torch.empty((num_rows, width), dtype=torch.int32, device=columns.device)
    launch(
        expand_candidates_kernel,
        (num_rows, -(-width // _COLUMNS)),
        *(rows, chosen, result, stride, chosen_stride, width),
        SIZE=block_size,
        BLOCK=_COLUMNS,
    )
    return result


def _queries(
    query: QuantTensor,
    head_weights: Tensor,
    block_table: Tensor,
    row_sequence: Tensor,
    visible: Tensor,
    query_lengths: tuple[int, ...] | None,
) -> Queries:
    return Queries(
        query=query,
        head_weights=head_weights,
        block_table=block_table,
        row_sequence=row_sequence,
        visible=visible,
        shared=query_lengths is not None,
    )


def _select_blocks(scores: Scores, visible: Tensor, result: Tensor, size: int) -> None:
    """Candidate blocks of each row; blocks of eight are a level of the scores' maxima already."""
    if size == _GROUP_SIZE and scores.maxima is not None:
        best = Scores(
            values=scores.maxima[:, : -(-scores.values.shape[1] // size)],
            maxima=scores.maxima[:, scores.second :] if scores.second else None,
            levels=scores.levels - 1,
        )
        select_columns(best, visible, result, divisor=size, newest=True)
        return
    values, counts = run_block_maximum(scores.values, visible, block_size=size)
    best = Scores.of(values)
    find_maxima(best, counts)
    select_columns(best, counts, result)


def _turns(num_rows: int, bytes_per_row: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose scores fit."""
    rows = max(SCRATCH_BYTES // max(bytes_per_row, 1) // _LEAST_ROWS, 1) * _LEAST_ROWS
    for start in range(0, num_rows, rows):
        yield start, min(start + rows, num_rows)


def _turn_bytes(num_rows: int, bytes_per_row: int) -> int:
    """What the turns of so many rows take at most."""
    return min(num_rows * bytes_per_row, max(SCRATCH_BYTES, _LEAST_ROWS * bytes_per_row))


def _row_bytes(width: int, block_size: int) -> int:
    """Scores of a row with their maxima, and those of its blocks where they are selected as well.

    Args:
        width: Scores of the row.
        block_size: Entries of a candidate block; 0 where none are selected.
    """
    scores = _SCORE_BYTES * (width + maxima_columns(width))
    if block_size in (0, _GROUP_SIZE) and (not block_size or maxima_columns(width)):
        return scores
    blocks = -(-width // block_size)
    return scores + _SCORE_BYTES * (blocks + maxima_columns(blocks)) + 4


def select_entries_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``indexer.select_entries``: a row has no more scores than the longest context has tokens."""
    blocks = site.attributes.get("candidate_blocks", 0)
    size = site.attributes.get("candidate_block_size", 1) if blocks else 0
    return _turn_bytes(request.rows, _row_bytes(request.max_context, size))


def select_within_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``indexer.select_within_candidates``: the scores of the candidates, of which there are ``Y`` blocks."""
    width = site.sizes["Y"] * site.attributes["candidate_block_size"]
    return _turn_bytes(request.rows, _SCORE_BYTES * width)


def top_k_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``indexer.top_k``: maxima of rows of ``Z`` scores, or as many as the longest context has tokens."""
    return request.rows * _SCORE_BYTES * maxima_columns(site.sizes.get("Z", request.max_context))


_SCORED = (
    dtype_in("bf16"),
    attribute_in("score_mode", "fma_chain"),
    at_most("X", 32),
    one_of("D", 32, 64, 128),
    multiple_of("P", 8),
)

IMPLEMENTATIONS = {
    index_scores: (Implementation(run_index_scores, _SCORED, row_invariant=True),),
    select_entries: (
        Implementation(run_select_entries, _SCORED, row_invariant=True, workspace=select_entries_workspace),
    ),
    select_within_candidates: (
        Implementation(run_select_within_candidates, _SCORED, row_invariant=True, workspace=select_within_workspace),
    ),
    top_k: (Implementation(run_top_k, (dtype_in("bf16"),), row_invariant=True, workspace=top_k_workspace),),
    block_maximum: (Implementation(run_block_maximum, (dtype_in("bf16", "f32"),), row_invariant=True),),
    candidate_scores: (Implementation(run_candidate_scores, (dtype_in("bf16", "f32"),), row_invariant=True),),
    expand_candidates: (Implementation(run_expand_candidates, row_invariant=True),),
}
