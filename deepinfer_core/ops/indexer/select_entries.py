"""Index and select: which compressed entries each row attends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Shape, Use, composite
from deepinfer_core.ops.indexer.index_scores import draw_index_step, index_scores
from deepinfer_core.ops.indexer.top_k import block_maximum, candidate_scores, expand_candidates, top_k
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import Cache, QuantTensor

_SELECTION = Tolerance.exact()


@composite("indexer.select_entries", parts=(index_scores, top_k, block_maximum), tolerance=_SELECTION)
def select_entries(
    use: Use,
    query: Annotated[QuantTensor, Shape("T", "X", "D"), Formats("mxfp4")],
    head_weights: Annotated[Tensor, Shape("T", "X"), Dtypes("bf16", "f32", "f64")],
    keys: Annotated[Cache, Shape("M", "P", "D"), Formats("mxfp4")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    visible: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    score_mode: str,
    k: int,
    candidate_blocks: int = 0,
    candidate_block_size: int = 1,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> tuple[Tensor, Tensor | None]:
    """Score all visible entries and select the best ``k``; also the best blocks, for later layers.

    Args:
        use: Turns a step into what is bound for it.
        query: See ``indexer.index_scores``, as for all other tensors.
        head_weights: See there.
        keys: See there.
        block_table: See there.
        row_sequence: See there.
        visible: See there.
        score_mode: See there.
        k: Entries to select.
        candidate_blocks: Candidate blocks to select by their maximum, 0 for none. The newest block is
            always among them.
        candidate_block_size: Entries per candidate block.
        query_lengths: See there.
        plan: See there.

    Returns:
        Entries ``[T, k]`` and candidate blocks ``[T, candidate_blocks]`` (or None): ascending, then -1.
    """
    scores = use(index_scores)(
        query,
        head_weights,
        keys,
        block_table,
        row_sequence,
        visible,
        score_mode=score_mode,
        query_lengths=query_lengths,
        plan=plan,
    )
    entries = use(top_k)(scores, visible, k=k)
    if not candidate_blocks:
        return entries, None
    best, blocks = use(block_maximum)(scores, visible, block_size=candidate_block_size)
    return entries, use(top_k)(best, blocks, k=candidate_blocks)


@composite(
    "indexer.select_within_candidates",
    parts=(index_scores, candidate_scores, top_k, expand_candidates),
    tolerance=_SELECTION,
)
def select_within_candidates(
    use: Use,
    query: Annotated[QuantTensor, Shape("T", "X", "D"), Formats("mxfp4")],
    head_weights: Annotated[Tensor, Shape("T", "X"), Dtypes("bf16", "f32", "f64")],
    keys: Annotated[Cache, Shape("M", "P", "D"), Formats("mxfp4")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    visible: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    candidates: Annotated[Tensor, Shape("T", "Y"), Dtypes("i32")],
    *,
    score_mode: str,
    k: int,
    candidate_block_size: int,
    query_lengths: tuple[int, ...] | None = None,
    plan: object = None,
) -> Tensor:
    """Score the entries of the candidate blocks only and select the best ``k`` of them.

    The steps score everything and drop the rest; a backend that implements the whole reads only the
    candidates. The selection is that of ``indexer.select_entries`` with other scores at -inf.

    Returns:
        Entries ``[T, k]``: ascending, then -1.
    """
    scores = use(index_scores)(
        query,
        head_weights,
        keys,
        block_table,
        row_sequence,
        visible,
        score_mode=score_mode,
        query_lengths=query_lengths,
        plan=plan,
    )
    compact, lengths = use(candidate_scores)(scores, visible, candidates, block_size=candidate_block_size)
    columns = use(top_k)(compact, lengths, k=k)
    return use(expand_candidates)(columns, candidates, block_size=candidate_block_size)


def _coarse(starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0) -> Callable[[Draw], dict[str, Any]]:
    """Small integers throughout: every score is exact in any order of summation, and many are tied."""
    draw_inputs = draw_index_step(starts, lengths, padding)

    def make(draw: Draw) -> dict[str, Any]:
        made = draw_inputs(draw)
        query, keys = made["query"], made["keys"]
        codes = draw.integers(0, 4, *query.data.shape, dtype="u8") * 2
        made["query"] = QuantTensor(codes, torch.full_like(query.scale, 127), query.format)
        values = keys.rows_per_block * keys.width // 2
        keys.storage[:, :values] = draw.integers(0, 3, keys.storage.shape[0], values, dtype="u8") * 0x22
        keys.storage[:, values:] = 124
        made["head_weights"] = draw.integers(0, 2, "T", "X").to(made["head_weights"].dtype)
        return made

    return make


def _with_candidates(draw: Draw) -> dict[str, Any]:
    made = _coarse((9, 20), (3, 4))(draw)
    rows = draw.sizes["T"]
    candidates = torch.full((rows, 3), -1, dtype=torch.int32)
    for row, seen in enumerate(made["visible"].tolist()):
        newest = (seen - 1) // 4
        chosen = sorted({newest, newest // 2, 0})
        candidates[row, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return {**made, "candidates": candidates}


@select_entries.cases
def _cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"X": 4, "D": 64, "J": 4, "P": 8, "M": 13}
    settings: dict[str, Any] = {"score_mode": "fma_chain", "k": 8, "candidate_blocks": 3, "candidate_block_size": 4}
    yield Case("decode", T=6, B=3, make=_coarse((3, 17, 25), (1, 4, 1)), required=True, **sizes, **settings)
    yield Case(
        "prefill", T=32, B=2, make=_coarse((0, 9), (12, 20)), query_lengths=(12, 20), required=True, **sizes, **settings
    )
    yield Case("padding_rows", T=5, B=2, make=_coarse((3, 17), (1, 1), 3), required=True, **sizes, **settings)
    yield Case("without_candidates", T=2, B=1, make=_coarse((19,), (2,)), score_mode="wide", k=8, **sizes)
    yield ErrorCase(
        "visible",
        T=2,
        B=1,
        make=_coarse((19,), (2,)),
        stretch=("visible", "T"),
        raises=ShapeError,
        match="T=3",
        **sizes,
        **settings,
    )


@select_within_candidates.cases
def _within_cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"T": 7, "B": 2, "Y": 3, "X": 4, "D": 64, "J": 4, "P": 8, "M": 13}
    settings: dict[str, Any] = {"score_mode": "fma_chain", "k": 6, "candidate_block_size": 4, "make": _with_candidates}
    yield Case("decode", required=True, **sizes, **settings)
    yield Case("prefill", query_lengths=(3, 4), required=True, **sizes, **settings)
    yield ErrorCase(
        "candidates", stretch=("candidates", "T"), raises=ShapeError, match="candidates has T=8", **sizes, **settings
    )
