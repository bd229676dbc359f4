"""Ring slots of one draft block: the context before it and the whole block (spec attention/07 section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("attention.draft_slots", tolerance=Tolerance.exact())
def draft_slots(
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    state_slots: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    *,
    window: int,
    ring: int,
    block: int,
) -> tuple[Tensor, Tensor]:
    """Slots that every row of a draft block reads, and the one that it writes.

    Rows come in groups of ``block``, one group per sequence, at ascending positions. All rows of a group read
    the same slots: the ``window`` context positions before the group and the group itself, later rows included.

    Returns:
        Slots ``[T, window + block]``, context first, -1 for positions before 0 and for padding; store slots ``[T]``.
    """
    base = state_slots[row_sequence.clamp_min(0).long()] * ring
    first = positions - torch.arange(len(positions), dtype=torch.int32, device=positions.device) % block
    column = torch.arange(window + block, dtype=torch.int32, device=positions.device)
    position = first[:, None] - window + column
    real = row_sequence >= 0
    slots = torch.where((position >= 0) & real[:, None], base[:, None] + position % ring, -1)
    return slots.to(torch.int32), torch.where(real, base + positions % ring, -1).to(torch.int32)


def _blocks(anchors: tuple[int, ...], block: int, padding: int = 0) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        positions = [anchor + i for anchor in anchors for i in range(block)] + [0] * (padding * block)
        sequence = [index for index in range(len(anchors)) for _ in range(block)] + [-1] * (padding * block)
        return {
            "positions": torch.tensor(positions, dtype=torch.int32),
            "row_sequence": torch.tensor(sequence, dtype=torch.int32),
            "state_slots": draw.distinct(len(anchors) + 3, len(anchors)) + 1,
        }

    return make


@draft_slots.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {"window": 8, "ring": 14, "block": 5}
    yield Case("short_and_wrapped", T=15, B=3, make=_blocks((1, 8, 100), 5), required=True, **settings)
    yield Case("padding", T=10, B=1, make=_blocks((6,), 5, 1), required=True, **settings)
    yield Case("no_rows", T=0, B=0, make=_blocks((), 5), **settings)
    yield ErrorCase(
        "rows", T=5, B=1, make=_blocks((6,), 5), stretch=("positions", "T"), raises=ShapeError, match="T=5", **settings
    )
