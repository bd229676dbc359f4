"""The n-gram context of every row of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("engram.ngram_context", tolerance=Tolerance.exact())
def ngram_context(
    compressed_ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    history: Annotated[Tensor, Shape("B", "_"), Dtypes("i32")],
    *,
    max_ngram: int,
    pad_id: int,
) -> Tensor:
    """Gather each row's own compressed id and those of the ``max_ngram - 1`` tokens before it.

    The result is ``[T, max_ngram]`` int32, the row itself first, older tokens after it. A missing token (before
    position 0) and an image token are ``pad_id``; an image token also hides everything older (spec model/06
    section 3). It depends only on ids and positions, so any chunking of a prompt gives the same contexts.

    Args:
        compressed_ids: Compressed id of each row's token, -1 for an image token.
        positions: Absolute position of each row in its sequence.
        row_sequence: Row of ``history`` that each row belongs to. Rows of one sequence are neighbours in
            ascending positions without gaps. Padding rows have -1; their context is all ``pad_id``.
        history: ``[B, max_ngram - 1]`` compressed ids just before the first row of each sequence in this step,
            most recent first, -1 for an image token or none. At least one row when there are tokens.
        max_ngram: Length of a context.
        pad_id: Compressed id of the padding token.
    """
    rows = torch.arange(len(compressed_ids), device=compressed_ids.device)
    sequences = row_sequence.long().clamp(min=0)
    hidden = (row_sequence < 0) | (compressed_ids < 0)
    in_step = torch.zeros_like(rows)
    columns = [torch.where(hidden, pad_id, compressed_ids)]
    for back in range(1, max_ngram):
        earlier = (rows - back).clamp(min=0)
        same = (rows >= back) & (row_sequence[earlier] == row_sequence)
        before_step = history[sequences, (back - 1 - in_step).clamp(min=0)]
        token = torch.where(same, compressed_ids[earlier], before_step)
        hidden = hidden | (token < 0) | (positions < back)
        columns.append(torch.where(hidden, pad_id, token))
        in_step = in_step + same
    return torch.stack(columns, dim=-1)


def _batch(draw: Draw) -> dict[str, Any]:
    """Sequences of random lengths that begin near position 0, so that some contexts reach before it."""
    tokens, sequences, back = draw.sizes["T"], draw.sizes["B"], draw.sizes["L"] - 1
    row_sequence = draw.integers(0, sequences, tokens).sort().values
    starts = draw.integers(0, back + 2, sequences)
    first_rows = torch.searchsorted(row_sequence, row_sequence)
    positions = starts[row_sequence.long()] + torch.arange(tokens, dtype=torch.int32) - first_rows.int()
    history = draw.integers(0, 97, sequences, back)
    history[torch.arange(back) >= starts[:, None]] = -1
    return {
        "compressed_ids": draw.integers(0, 97, tokens),
        "positions": positions,
        "row_sequence": row_sequence,
        "history": history,
    }


def _decode(draw: Draw) -> dict[str, Any]:
    """One row of each sequence: everything before it comes from the history."""
    made = _batch(draw)
    made["row_sequence"] = torch.arange(draw.sizes["T"], dtype=torch.int32)
    made["positions"] = draw.integers(0, 2 * draw.sizes["L"], "T")
    return made


def _with_images(draw: Draw) -> dict[str, Any]:
    """Every third token, or fewer, is an image's; one also stands in the history."""
    made = _batch(draw)
    made["compressed_ids"][draw.integers(0, 3, "T") == 0] = -1
    made["history"][:, 0] = -1
    return made


def _with_padding(draw: Draw) -> dict[str, Any]:
    """The last rows pad a captured step."""
    made = _batch(draw)
    made["row_sequence"][-3:] = -1
    made["compressed_ids"][-3:] = -1
    made["positions"][-3:] = 0
    return made


def _stale_history(draw: Draw) -> dict[str, Any]:
    """History that a new sequence must not read: it starts at position 0."""
    made = _batch(draw)
    made["positions"] = torch.arange(draw.sizes["T"], dtype=torch.int32)
    made["row_sequence"] = torch.zeros(draw.sizes["T"], dtype=torch.int32)
    made["history"] = draw.integers(0, 97, "B", draw.sizes["L"] - 1)
    return made


@ngram_context.cases
def _cases() -> Iterator[Case]:
    yield Case("batch", T=23, B=5, L=4, max_ngram=4, pad_id=2, make=_batch, required=True)
    yield Case("one_row_each", T=40, B=40, L=4, max_ngram=4, pad_id=2, make=_decode, required=True, bench=True)
    yield Case("no_rows", T=0, B=1, L=4, max_ngram=4, pad_id=2, make=_batch, required=True)
    yield Case("images", T=40, B=3, L=4, max_ngram=4, pad_id=2, make=_with_images, required=True)
    yield Case("padding_rows", T=12, B=3, L=4, max_ngram=4, pad_id=2, make=_with_padding, required=True)
    yield Case("stale_history", T=5, B=1, L=4, max_ngram=4, pad_id=2, make=_stale_history, required=True)
    yield Case("bigrams", T=9, B=2, L=2, max_ngram=2, pad_id=7, make=_batch)
    yield Case("long_grams", T=9, B=2, L=6, max_ngram=6, pad_id=0, make=_batch)
    yield ErrorCase(
        "too_many_positions", T=4, B=2, L=4, max_ngram=4, pad_id=2, make=_batch,
        stretch=("positions", "T"), raises=ShapeError, match="positions has T=5",
    )  # fmt: skip
    yield ErrorCase(
        "long_ids", T=4, B=2, L=4, max_ngram=4, pad_id=2, make=_batch,
        spoil=lambda a: a.update(compressed_ids=a["compressed_ids"].long()), raises=DtypeError, match="i64",
    )  # fmt: skip
