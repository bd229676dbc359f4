"""The window of prompt rows: which rows of history and current rows each of them reads, and which rings keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.attention.metadata import draw_step
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("attention.window_indices", tolerance=Tolerance.exact(), version=2)
def window_indices(
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    state_slots: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    context_lengths: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    query_lengths: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    window_start: Annotated[Tensor | None, Shape("B"), Dtypes("i32")] = None,
    *,
    window: int,
    ring: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Window of prompt rows over a buffer of history and current rows (spec attention/04 section 4).

    The buffer is ``[B * window history rows | T current rows]``; history row ``i`` of a sequence holds
    position ``q0 - window + i`` where ``q0 = context_length - query_length`` is its first position in this step.
    Row ``p`` sees the positions ``max(p - window + 1, window_start) .. p``; a row before ``window_start`` sees none
    (spec attention/05: the floor of a replayed prefix and of a truncated prompt).

    Args:
        positions: Position of each row.
        row_sequence: Sequence of each row.
        state_slots: State slot of each sequence.
        context_lengths: Tokens of each sequence including this step.
        query_lengths: Rows of each sequence: the last ones of its context.
        window_start: First position of each sequence that has window keys: those before it are neither read nor
            stored; None is 0 for all. From the end of the context on, a sequence reads and stores nothing.
        window: Keys of a full window.
        ring: Rows of a window ring.

    Returns:
        Indices ``[T, window]`` into the buffer (valid first, then -1); ring slots ``[B * window]`` of the history,
        -1 before position 0 and before ``window_start``; and store slots ``[T]``: the last ``ring`` rows of a
        sequence from ``window_start`` on are kept, the others are -1.
    """
    device, count = positions.device, state_slots.shape[0]
    floor = torch.zeros_like(state_slots) if window_start is None else window_start.clamp_min(0)
    first = context_lengths - query_lengths
    column = torch.arange(window, dtype=torch.int32, device=device)
    history = first[:, None] - window + column
    history_slots = torch.where(history >= floor[:, None], state_slots[:, None] * ring + history % ring, -1)

    sequence = row_sequence.clamp_min(0).long()
    row_start = (torch.cumsum(query_lengths, 0) - query_lengths).to(torch.int32)
    begin = torch.minimum(torch.maximum(positions - window + 1, floor[sequence]), positions + 1)
    from_first = (begin - first[sequence])[:, None] + column
    current = count * window + row_start[sequence][:, None] + from_first
    past = sequence[:, None] * window + window + from_first
    real = row_sequence >= 0
    listed = (begin[:, None] + column <= positions[:, None]) & real[:, None]
    indices = torch.where(listed, torch.where(from_first >= 0, current, past), -1)

    kept = real & (positions >= torch.maximum(context_lengths - ring, floor)[sequence])
    stores = torch.where(kept, state_slots[sequence] * ring + positions % ring, -1)
    return indices.to(torch.int32), history_slots.flatten().to(torch.int32), stores.to(torch.int32)


def _step(
    starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0, window_start: tuple[int, ...] | None = None
) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        step = draw_step(draw, starts, lengths, padding)
        if window_start is not None:
            step["window_start"] = torch.tensor(window_start, dtype=torch.int32)
        return step

    return make


_FLOORS = {
    "none": (0, 0, 0),
    "inside_the_history": (0, 27, 4),
    "at_the_history": (3, 22, 5),
    "inside_the_chunk": (6, 35, 9),
    "before_the_last_row_only": (7, 49, 8),
    "behind_every_row": (8, 50, 1000),
}
"""Floors of sequences at 3, 30 and 5 with 5, 20 and 4 rows: in the history (window 8), in the chunk, beyond it."""


@window_indices.cases
def _cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"window": 8, "ring": 14}
    yield Case("prompts_from_start", T=25, B=2, make=_step((0, 0), (5, 20)), required=True, **sizes)
    yield Case("later_chunks", T=25, B=2, make=_step((3, 30), (5, 20)), required=True, **sizes)
    yield Case("padding_rows", T=7, B=1, make=_step((9,), (4,), 3), **sizes)
    yield Case("no_rows", T=0, B=0, make=_step((), ()), required=True, **sizes)
    for name, floors in _FLOORS.items():
        make = _step((3, 30, 5), (5, 20, 4), 2, floors)
        yield Case(f"floor_{name}", T=31, B=3, make=make, required=True, **sizes)
    make = _step((0, 40, 3), (5, 1, 2), 1, (0, 33, 2))
    yield Case("floor_window_of_one", T=9, B=3, window=1, ring=7, make=make, required=True)
    yield ErrorCase(
        "lengths",
        T=1,
        B=1,
        make=_step((0,), (1,)),
        stretch=("query_lengths", "B"),
        raises=ShapeError,
        match="query_lengths has B=2",
        **sizes,
    )
    yield ErrorCase(
        "window_start",
        T=1,
        B=1,
        make=_step((0,), (1,), 0, (0,)),
        stretch=("window_start", "B"),
        raises=ShapeError,
        match="window_start has B=2",
        **sizes,
    )
