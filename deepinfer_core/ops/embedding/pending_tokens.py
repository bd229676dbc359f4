"""Tokens that the host does not know yet: kept on the device by state slot, read by the next step.

A step may be launched before the host has seen what the one before it sampled (spec engine/03 section 4). Its rows then
hold :data:`PENDING` instead of a token, and the device puts in what the sampler left for the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

PENDING = -1
"""Stands for the token that was sampled last for the row's sequence."""


@op("embedding.resolve_tokens", tolerance=Tolerance.exact(), row_axis="T")
def resolve_tokens(
    ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    compressed_ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    state_slots: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    latest: Annotated[Tensor, Shape("M"), Dtypes("i32")],
    compressed_map: Annotated[Tensor, Shape("V"), Dtypes("i32")],
) -> tuple[Tensor, Tensor]:
    """The tokens of all rows, and their compressed ids.

    Args:
        ids: Tokens, :data:`PENDING` where only the device knows.
        compressed_ids: Compressed ids; read where the token is known.
        row_sequence: Sequence of each row, -1 for padding.
        state_slots: State slot of each sequence.
        latest: Token sampled last for the sequence in each state slot; -1, where none could be sampled, reads as 0.
        compressed_map: Token -> compressed id.

    Returns:
        Tokens ``[T]`` and compressed ids ``[T]``; known ones are as they were, padding rows too.
    """
    pending = (ids == PENDING) & (row_sequence >= 0)
    slots = state_slots[row_sequence.clamp_min(0).long()].long() if state_slots.numel() else row_sequence.long()
    tokens = torch.where(pending, latest[slots.clamp_min(0)].clamp_min(0), ids)
    compressed = compressed_map[torch.where(pending, tokens, 0).long()]
    return tokens, torch.where(pending, compressed, compressed_ids)


@op("embedding.remember_tokens", tolerance=Tolerance.exact(), mutates=("latest",))
def remember_tokens(
    token_ids: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    slots: Annotated[Tensor, Shape("R"), Dtypes("i32")],
    latest: Annotated[Tensor, Shape("M"), Dtypes("i32")],
) -> None:
    """Keep what was sampled: ``latest[slots[i]] = token_ids[i]``.

    Args:
        token_ids: Sampled tokens.
        slots: State slot of each one's sequence, all distinct; -1 skips the row.
        latest: Written in place; other slots keep their tokens.
    """
    room = torch.cat([latest, latest.new_zeros(1)])  # whose last place takes the rows that are skipped
    room[torch.where(slots < 0, len(latest), slots).long()] = token_ids
    latest.copy_(room[:-1])


def _step(draw: Draw, rows: list[int], pending: list[bool]) -> dict[str, Any]:
    """Rows of sequences, some of them pending; slots are distinct."""
    sizes = draw.sizes
    known = draw.integers(0, sizes["V"], "T")
    return {
        "ids": torch.where(torch.tensor(pending, dtype=torch.bool), PENDING, known).int(),
        "compressed_ids": draw.integers(-1, 50, "T"),
        "row_sequence": torch.tensor(rows, dtype=torch.int32),
        "state_slots": draw.distinct(sizes["M"] - 1, sizes["B"]) + 1,
        "latest": draw.integers(-1, sizes["V"], "M"),
        "compressed_map": draw.integers(0, 50, "V"),
    }


@resolve_tokens.cases
def _resolve_cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"B": 3, "M": 9, "V": 40}
    yield Case(
        "some_pending",
        T=5,
        **sizes,
        make=lambda draw: _step(draw, [0, 1, 1, 2, 2], [True, False, True, False, True]),
        required=True,
    )
    yield Case(
        "padding_that_looks_pending",
        T=4,
        **sizes,
        make=lambda draw: _step(draw, [0, 2, -1, -1], [True, True, True, False]),
        required=True,
    )
    yield Case("all_known", T=3, **sizes, make=lambda draw: _step(draw, [0, 1, 2], [False] * 3), required=True)
    yield Case("no_rows", T=0, B=0, M=9, V=40, make=lambda draw: _step(draw, [], []), required=True)
    yield ErrorCase(
        "rows",
        T=3,
        **sizes,
        make=lambda draw: _step(draw, [0, 1, 2], [True] * 3),
        stretch=("compressed_ids", "T"),
        raises=ShapeError,
        match="compressed_ids has T=4",
    )


@remember_tokens.cases
def _remember_cases() -> Iterator[Case]:
    def make(draw: Draw) -> dict[str, Any]:
        return {
            "token_ids": draw.integers(-1, 99, "R"),
            "slots": draw.distinct(draw.sizes["M"], draw.sizes["R"]),
            "latest": draw.integers(0, 99, "M"),
        }

    yield Case("some_slots", R=5, M=12, make=make, required=True)
    yield Case("no_rows", R=0, M=12, make=make, required=True)
    yield ErrorCase("slots", R=5, M=12, make=make, stretch=("slots", "R"), raises=ShapeError, match="slots has R=6")
