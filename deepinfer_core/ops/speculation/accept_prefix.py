"""How many drafts of each sequence stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("speculation.accept_prefix", tolerance=Tolerance.exact(), row_axis="B")
def accept_prefix(
    accepted: Annotated[Tensor, Shape("B", "_"), Dtypes("bool")],
    first_row: Annotated[Tensor, Shape("B"), Dtypes("i32")],
) -> tuple[Tensor, Tensor]:
    """Return the number of accepted drafts and the last row that counts, both ``[B]`` int32.

    A draft stands when it and all before it are accepted. The row after the last of these, the first rejected or the
    fresh one, gives the sequence's next token (spec engine/04 section 3).

    Args:
        accepted: What ``speculation.verify`` decided, one column per draft; False where a sequence has fewer drafts.
        first_row: Row of the step that judges each sequence's first draft; its rows follow each other.
    """
    num_accepted = accepted.int().cumprod(-1).sum(-1).int()
    return num_accepted, first_row + num_accepted


def _random(draw: Draw) -> dict[str, Tensor]:
    return {
        "accepted": draw.integers(0, 4, "B", 5, dtype="bool"),
        "first_row": torch.arange(draw.sizes["B"], dtype=torch.int32) * 6,
    }


def _edges(_: Draw) -> dict[str, Tensor]:
    flags = [[True, True], [False, True], [True, False], [False, False]]
    return {"accepted": torch.tensor(flags), "first_row": torch.tensor([0, 3, 6, 9], dtype=torch.int32)}


def _no_drafts(draw: Draw) -> dict[str, Tensor]:
    return {**_random(draw), "accepted": torch.zeros(draw.sizes["B"], 0, dtype=torch.bool)}


@accept_prefix.cases
def _cases() -> Iterator[Case]:
    yield Case("many", B=67, make=_random, required=True, bench=True)
    yield Case("no_sequences", B=0, make=_random, required=True)
    yield Case("edges", B=4, make=_edges, required=True)
    yield Case("no_drafts", B=3, make=_no_drafts, required=True)
    yield ErrorCase("rows", B=2, make=_random, stretch=("first_row", "B"), raises=ShapeError, match="B=3")
    yield ErrorCase(
        "numbers",
        B=2,
        make=_random,
        spoil=lambda a: a.update(accepted=a["accepted"].int()),
        raises=DtypeError,
        match="i32",
    )
