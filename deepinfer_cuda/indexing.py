"""Launches of the index kernels: scores of rows with their maxima, and selection from them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.tensor import Cache, QuantTensor
from deepinfer_cuda.kernels.block_maximum import block_maximum_kernel
from deepinfer_cuda.kernels.index_scores import index_scores_kernel
from deepinfer_cuda.kernels.top_k import top_k_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.row_tiles import power_of_two

_CHOICES = Path(__file__).parent / "tuning" / "indexer.toml"
_GROUP = 8
"""Members of a group at each level of maxima."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """What rows ask and whom: the tensors of ``indexer.index_scores`` but the keys' cache.

    Attributes:
        query: ``[T, X, D]``, mxfp4.
        head_weights: ``[T, X]``.
        block_table: ``[B, J]``.
        row_sequence: ``[T]``.
        visible: ``[T]``.
        shared: Whether neighbouring rows mostly belong to one sequence (prefill).
    """

    query: QuantTensor
    head_weights: Tensor
    block_table: Tensor
    row_sequence: Tensor
    visible: Tensor
    shared: bool

    def rows(self, start: int, stop: int) -> Queries:
        """Some of the rows."""
        part = slice(start, stop)
        return Queries(
            query=self.query[part],
            head_weights=self.head_weights[part],
            block_table=self.block_table,
            row_sequence=self.row_sequence[part],
            visible=self.visible[part],
            shared=self.shared,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Blocks of entries to which rows are restricted.

    Attributes:
        blocks: ``[T, Y]``, ascending, then -1.
        size: Entries of a block.
    """

    blocks: Tensor
    size: int

    def rows(self, start: int, stop: int) -> Candidates:
        """Those of some of the rows."""
        return Candidates(blocks=self.blocks[start:stop], size=self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of rows, and the maxima through which selection finds its way.

    Attributes:
        values: ``[T, width]`` bfloat16; what is not visible is undefined.
        maxima: Of every eight values, and from column ``second`` on of every 64; None for narrow rows.
        second: See ``maxima``.
        levels: Levels of maxima: 0, 1 or 2.
    """

    values: Tensor
    maxima: Tensor | None = None
    second: int = 0
    levels: int = 0

    @staticmethod
    def empty(num_rows: int, width: int, device: torch.device) -> Scores:
        """Room for the scores of rows of this width and for the levels of maxima that it needs."""
        values = torch.empty((num_rows, width), dtype=torch.bfloat16, device=device)
        return Scores.of(values)

    @staticmethod
    def of(values: Tensor) -> Scores:
        """Scores that are there, with room for their maxima."""
        num_rows, width = values.shape
        levels = num_levels(width)
        if not levels:
            return Scores(values=values)
        maxima = torch.empty((num_rows, maxima_columns(width)), dtype=torch.bfloat16, device=values.device)
        second = _padded(-(-width // _GROUP)) if levels > 1 else 0
        return Scores(values=values, maxima=maxima, second=second, levels=levels)


def num_levels(width: int) -> int:
    """Levels of maxima that selection from rows of this width starts from."""
    widest = choices()["select"]["widest"]
    if width <= widest:
        return 0
    return 1 if width <= widest * _GROUP else 2


def maxima_columns(width: int) -> int:
    """Columns of the levels of maxima of a row of this width, one after the other; 0 where it needs none."""
    return sum(_padded(-(-width // _GROUP**level)) for level in range(1, num_levels(width) + 1))


def score_rows(
    queries: Queries,
    keys: Cache,
    scores: Scores,
    *,
    candidates: Candidates | None = None,
    fill: bool,
) -> None:
    """Score cached keys into ``scores`` (and its maxima).

    Args:
        queries: The rows.
        keys: Index keys.
        scores: Written; its width is that of the block table, or of the candidates.
        candidates: Score only these, side by side.
        fill: Whether columns that are not visible become -inf; else they are undefined.
    """
    num_rows, width = scores.values.shape
    rows_each = 4 if queries.shared and candidates is None else 1
    choice = choices()["scores"]["four" if rows_each == 4 else "one"]
    data, scale = _dense(queries.query.data).view(torch.int32), _dense(queries.query.scale)
    weights, weight_stride = rows_of(queries.head_weights)
    table, table_stride = rows_of(queries.block_table)
    storage = keys.storage.view(torch.int32)
    picked, picked_stride = (table, 0) if candidates is None else rows_of(candidates.blocks)
    maxima = scores.values if scores.maxima is None else scores.maxima
    num_tiles = -(-width // choice["tile"])
    row_programs = -(-num_rows // rows_each)
    launch(
        index_scores_kernel,
        (row_programs, max(min(choice["programs"] // max(row_programs, 1), num_tiles), 1)),
        *(data, scale, weights, storage, table, queries.row_sequence, queries.visible, picked, scores.values, maxima),
        *(data.stride(0), scale.stride(0), weight_stride, storage.stride(0), table_stride, picked_stride),
        *(scores.values.stride(0), maxima.stride(0), num_rows, table.shape[1], picked.shape[1], width, scores.second),
        **_score_constants(queries, keys),
        QUERIES=rows_each,
        TILE=choice["tile"],
        WARPS=choice["num_warps"],
        CANDIDATE_SIZE=0 if candidates is None else candidates.size,
        NUM_MAXIMA=scores.levels,
        FILL=fill,
        AHEAD=choice["ahead"],
        STAGES=choice["num_stages"],
        **{name: choice[name] for name in ("num_warps", "num_stages")},
    )


def find_maxima(scores: Scores, lengths: Tensor) -> None:
    """Fill the maxima of scores that are there."""
    if scores.maxima is not None:
        launch_maxima(scores.values, lengths, scores.maxima, size=_GROUP, second=scores.second)


def launch_maxima(
    values: Tensor, lengths: Tensor, best: Tensor, *, size: int, counts: Tensor | None = None, second: int = 0
) -> None:
    """Maxima of blocks of ``size`` columns; see the kernel's parameters of the same names.

    Args:
        values: ``[T, width]``.
        lengths: Columns that count, per row.
        best: Written.
        size: Columns of a block.
        counts: Receives the number of blocks of each row; the last block then counts as infinite.
        second: Column of ``best`` from which on maxima of every eight blocks are written, 0 for none.
    """
    rows, stride = rows_of(values)
    num_rows, width = values.shape
    padded = power_of_two(size)
    choice = choices()["maxima"]
    blocks = max(choice["blocks"] * _GROUP // padded, _GROUP)
    blocks = min(blocks, max(power_of_two(-(-width // size)), _GROUP))
    launch(
        block_maximum_kernel,
        (num_rows, -(-width // (blocks * size))),
        *(rows, lengths, best, lengths if counts is None else counts, stride, best.stride(0), width, second),
        SIZE=size,
        PADDED=padded,
        BLOCKS=blocks,
        EVEN=width % size == 0,
        NEWEST=counts is not None,
        SECOND=second > 0,
        num_warps=choice["num_warps"],
    )


def select_columns(
    scores: Scores,
    lengths: Tensor,
    result: Tensor,
    *,
    divisor: int = 1,
    newest: bool = False,
    candidates: Candidates | None = None,
) -> None:
    """Columns of the largest scores of each row into ``result [T, k]``, ascending, then -1; see ``top_k_kernel``."""
    num_rows, width = scores.values.shape
    rows, stride = rows_of(scores.values)
    k = result.shape[1]
    top = power_of_two(max(-(-width // _GROUP**scores.levels), k, _GROUP))
    most = max(top, _GROUP * power_of_two(k) if scores.levels else 0)
    num_warps = min(max(most // (32 * choices()["select"]["scores_of_a_thread"]), 1), 16)
    maxima = rows if scores.maxima is None else scores.maxima
    picked, picked_stride = (result, 0) if candidates is None else rows_of(candidates.blocks)
    launch(
        top_k_kernel,
        (num_rows,),
        *(rows, maxima, lengths, picked, result, stride, maxima.stride(0), picked_stride, result.stride(0)),
        *(width, scores.second, picked.shape[1], k),
        LEVELS=scores.levels,
        TOP=top,
        PICKED=power_of_two(k),
        DIVISOR=divisor,
        NEWEST=newest,
        CANDIDATE_SIZE=0 if candidates is None else candidates.size,
        EVEN=width % _GROUP == 0,
        WARPS=num_warps,
        num_warps=num_warps,
        num_stages=1,
    )


@cache
def choices() -> dict[str, Any]:
    """Block sizes and warps, as data."""
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))


def _score_constants(queries: Queries, keys: Cache) -> dict[str, int]:
    return {"NUM_HEADS": queries.query.shape[1], "NUM_GROUPS": keys.width // 32, "BLOCK_ROWS": keys.rows_per_block}


def _dense(tensor: Tensor) -> Tensor:
    """A tensor whose axes but the first are dense."""
    expected = tensor.shape[2], 1
    return tensor if tensor.stride()[1:] == expected else tensor.contiguous()


def _padded(columns: int) -> int:
    """Columns of a level of maxima, so that groups of eight may be read whole."""
    return -(-columns // _GROUP) * _GROUP
