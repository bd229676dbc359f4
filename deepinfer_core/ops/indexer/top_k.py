"""Selection with a stable tie rule, and candidate blocks (spec attention/03 sections 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

_EXACT = Tolerance.exact()
_SCORE = ("bf16", "f32", "f64")


@op("indexer.top_k", tolerance=_EXACT, row_axis="T")
def top_k(
    scores: Annotated[Tensor, Shape("T", "Z"), Dtypes(*_SCORE)],
    lengths: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    k: int,
) -> Tensor:
    """Columns of the ``k`` largest scores among the first ``lengths`` ones, ascending, then -1.

    The larger score first, the smaller column among equals; the result does not depend on the width of
    the row or on other rows. A row of at most ``k`` columns selects all of them.

    Args:
        scores: Finite where they count; anything elsewhere.
        lengths: Columns that count, per row.
        k: Columns of the result.

    Returns:
        ``[T, k]`` int32.
    """
    count, width = scores.shape
    column = torch.arange(width, dtype=torch.int32, device=scores.device)
    counts = column < lengths[:, None]
    kept = torch.where(counts, scores, -torch.inf)
    if width > k:
        edge = torch.topk(kept, k, -1).values[:, -1:]
        above, tied = kept > edge, (kept == edge) & counts
        room = k - above.sum(-1, keepdim=True)
        counts = above | (tied & (torch.cumsum(tied, -1) <= room))
    place = torch.where(counts, torch.cumsum(counts, -1) - 1, k)
    result = torch.full((count, k + 1), -1, dtype=torch.int32, device=scores.device)
    return result.scatter_(1, place, column.expand(count, -1))[:, :k].contiguous()


@op("indexer.block_maximum", tolerance=_EXACT, row_axis="T")
def block_maximum(
    scores: Annotated[Tensor, Shape("T", "Z"), Dtypes(*_SCORE)],
    lengths: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """Largest visible score of each block of columns; the newest block of a row counts as infinite.

    Returns:
        ``[T, ceil(Z / block_size)]`` scores, capped at the largest finite bf16 and -inf past the row's
        length; and the number of blocks of each row.
    """
    width = scores.shape[1]
    column = torch.arange(width, dtype=torch.int32, device=scores.device)
    kept = torch.where(column < lengths[:, None], scores, -torch.inf)
    kept = torch.nn.functional.pad(kept, (0, -width % block_size), value=-torch.inf)
    best = kept.unflatten(1, (-1, block_size)).amax(-1).clamp(max=torch.finfo(torch.bfloat16).max)
    blocks = (lengths + block_size - 1) // block_size
    index = torch.arange(best.shape[1], dtype=torch.int32, device=scores.device)
    newest = index == (blocks - 1)[:, None]
    return torch.where(newest, torch.inf, best), blocks.to(torch.int32)


@op("indexer.candidate_scores", tolerance=_EXACT, row_axis="T")
def candidate_scores(
    scores: Annotated[Tensor, Shape("T", "Z"), Dtypes(*_SCORE)],
    lengths: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    candidates: Annotated[Tensor, Shape("T", "Y"), Dtypes("i32")],
    *,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """Scores of the columns of candidate blocks, side by side.

    Args:
        scores: Scores of all columns.
        lengths: Visible columns per row.
        candidates: Block numbers, ascending, then -1.
        block_size: Columns per block.

    Returns:
        ``[T, Y * block_size]``: column ``c`` is entry ``candidates[c // block_size] * block_size + c % block_size``
        (-inf past the row's length); and the number of compact columns that count.
    """
    offset = torch.arange(block_size, dtype=torch.int32, device=scores.device)
    columns = (candidates.clamp_min(0)[:, :, None] * block_size + offset).flatten(1)
    real = (candidates >= 0).repeat_interleave(block_size, 1) & (columns < lengths[:, None])
    picked = scores.gather(1, columns.clamp(max=scores.shape[1] - 1).long())
    compact = torch.where(real, picked, torch.full((), -torch.inf, dtype=scores.dtype, device=scores.device))
    return compact, real.sum(-1).to(torch.int32)


@op("indexer.expand_candidates", tolerance=_EXACT, row_axis="T")
def expand_candidates(
    columns: Annotated[Tensor, Shape("T", "S"), Dtypes("i32")],
    candidates: Annotated[Tensor, Shape("T", "Y"), Dtypes("i32")],
    *,
    block_size: int,
) -> Tensor:
    """Compact columns of ``indexer.candidate_scores`` -> entries; -1 stays -1."""
    safe = columns.clamp_min(0)
    block = candidates.gather(1, (safe // block_size).long())
    return torch.where(columns >= 0, block * block_size + safe % block_size, -1).to(torch.int32)


def _tied(draw: Draw) -> dict[str, Any]:
    """Few distinct scores, so that the edge of every selection is tied; negative and positive zeros."""
    scores = draw.integers(-1, 2, "T", "Z").to(torch.bfloat16)
    scores[:, ::5] = -0.0
    return {"scores": scores, "lengths": draw.integers(0, draw.sizes["Z"] + 1, "T")}


def _lengths(draw: Draw) -> dict[str, Any]:
    scores = draw.normal("T", "Z")
    scores[:, -1:] = torch.nan
    return {"scores": scores, "lengths": draw.integers(0, draw.sizes["Z"], "T")}


def _candidates(draw: Draw) -> dict[str, Any]:
    """Ascending candidate blocks with -1 behind, the newest block of the row among them."""
    size, count = 4, draw.sizes["Y"]
    lengths = draw.integers(1, draw.sizes["Z"] + 1, "T")
    candidates = torch.full((draw.sizes["T"], count), -1, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        blocks = -(-length // size)
        older = draw.distinct(blocks - 1, min(blocks - 1, count - 1)).sort().values
        chosen = torch.cat((older, torch.tensor([blocks - 1], dtype=torch.int32)))
        candidates[row, : len(chosen)] = chosen
    columns = draw.integers(-1, 1, "T", draw.sizes.get("S", 1))
    return {"scores": draw.normal("T", "Z"), "lengths": lengths, "candidates": candidates, "columns": columns}


@top_k.cases
def _top_k_cases() -> Iterator[Case]:
    yield Case("ties_take_the_smaller_column", T=40, Z=60, k=8, make=_tied, required=True)
    yield Case("beyond_the_length_may_be_nan", T=20, Z=60, k=8, make=_lengths, required=True)
    yield Case("fewer_columns_than_k", T=9, Z=5, k=8, make=_lengths, required=True)
    yield Case("f32", T=9, Z=33, k=4, make=_lengths, dtype="f32")
    yield Case("no_rows", T=0, Z=20, k=8, make=_tied, required=True)
    yield Case("released", T=1, Z=131072, k=512, make=_lengths, bench=True)
    yield ErrorCase(
        "lengths", T=2, Z=8, k=2, make=_tied, stretch=("lengths", "T"), raises=ShapeError, match="lengths has T=3"
    )


@block_maximum.cases
def _block_maximum_cases() -> Iterator[Case]:
    yield Case("partial_last_block", T=20, Z=61, block_size=8, make=_lengths, required=True)
    yield Case("one_block", T=5, Z=3, block_size=8, make=_lengths)
    yield Case("no_rows", T=0, Z=16, block_size=8, make=_tied, required=True)
    yield ErrorCase(
        "lengths",
        T=2,
        Z=8,
        block_size=4,
        make=_tied,
        stretch=("lengths", "T"),
        raises=ShapeError,
        match="lengths has T=3",
    )


@candidate_scores.cases
def _candidate_cases() -> Iterator[Case]:
    yield Case("partial_newest_block", T=20, Z=61, Y=6, block_size=4, make=_candidates, required=True)
    yield Case("no_rows", T=0, Z=61, Y=6, block_size=4, make=_candidates, required=True)
    yield ErrorCase(
        "candidates",
        T=2,
        Z=9,
        Y=2,
        block_size=4,
        make=_candidates,
        stretch=("candidates", "T"),
        raises=ShapeError,
        match="T=3",
    )


@expand_candidates.cases
def _expand_cases() -> Iterator[Case]:
    yield Case("with_none", T=20, Z=61, Y=6, S=5, block_size=4, make=_candidates, required=True)
    yield ErrorCase(
        "columns",
        T=2,
        Z=9,
        Y=2,
        S=3,
        block_size=4,
        make=_candidates,
        stretch=("columns", "T"),
        raises=ShapeError,
        match="T=2",
    )
