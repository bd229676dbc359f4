"""Where each row of a step reads and writes: slots and indices, computed once per step on the device.

Positions are absolute per sequence. Padding rows have sequence -1: they read and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

_EXACT = Tolerance.exact()


@op("attention.window_slots", tolerance=_EXACT, row_axis="T")
def window_slots(
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    state_slots: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    *,
    window: int,
    ring: int,
) -> tuple[Tensor, Tensor]:
    """Ring slots that each decode row reads, and the one that it writes (spec attention/07 section 1).

    Returns:
        Slots ``[T, window]`` of positions ``p - window + 1 .. p``, valid ones first and ascending in
        position, then -1; and the store slot ``[T]`` of position ``p``, -1 for padding.
    """
    base = state_slots[row_sequence.clamp_min(0).long()] * ring
    length = torch.clamp(positions + 1, max=window)
    column = torch.arange(window, dtype=torch.int32, device=positions.device)
    position = (positions - length + 1)[:, None] + column
    valid = (column < length[:, None]) & (row_sequence >= 0)[:, None]
    slots = torch.where(valid, base[:, None] + position % ring, -1)
    return slots.to(torch.int32), torch.where(row_sequence >= 0, base + positions % ring, -1).to(torch.int32)


@op("attention.entry_metadata", tolerance=_EXACT, row_axis="T", version=2)
def entry_metadata(
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    store_from: Annotated[Tensor | None, Shape("B"), Dtypes("i32")] = None,
    *,
    ratio: int,
    rows_per_block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compressed entries of each row: how many it sees, which one it stores, and at which position that one lies.

    A row stores the entry that it closes, unless the entry was cached before: rows of a replayed prefix leave what
    other sequences may share as it is (spec attention/05 B). What a row sees does not depend on that.

    Args:
        positions: Position of each row.
        row_sequence: Sequence of each row.
        block_table: Blocks of each sequence.
        store_from: First position of each sequence that stores the entry which it closes; None is 0 for all.
        ratio: Tokens per entry.
        rows_per_block: Entries per block.

    Returns:
        Visible entries ``[T]``, ``(p + 1) // ratio``; the slot ``[T]`` of the entry that the row stores, -1
        for none; the entry's position ``[T]``, that of its first token (0 where none is stored).
    """
    real, sequence = row_sequence >= 0, row_sequence.clamp_min(0).long()
    visible = torch.where(real, (positions + 1) // ratio, 0)
    closes = real & ((positions + 1) % ratio == 0)
    if store_from is not None:
        closes = closes & (positions >= store_from[sequence])
    entry = torch.where(closes, positions // ratio, 0)
    block = block_table[sequence, torch.clamp(entry // rows_per_block, max=block_table.shape[1] - 1).long()]
    slot = torch.where(closes, block * rows_per_block + entry % rows_per_block, -1)
    return visible.to(torch.int32), slot.to(torch.int32), (entry * ratio).to(torch.int32)


@op("attention.entry_slots", tolerance=_EXACT, row_axis="T")
def entry_slots(
    entries: Annotated[Tensor, Shape("T", "S"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    *,
    rows_per_block: int,
) -> Tensor:
    """Logical entries of each row's sequence -> flat cache slots ``[T, S]``; -1 stays -1."""
    safe = entries.clamp_min(0)
    block = block_table[row_sequence.clamp_min(0).long()[:, None], (safe // rows_per_block).long()]
    return torch.where(entries >= 0, block * rows_per_block + safe % rows_per_block, -1).to(torch.int32)


@op("attention.context_gather", tolerance=_EXACT)
def context_gather(
    context_lengths: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    block_table: Annotated[Tensor, Shape("B", "J"), Dtypes("i32")],
    *,
    ratio: int,
    rows_per_block: int,
    total: int,
) -> tuple[Tensor, Tensor]:
    """Slots of all entries of all sequences, one sequence after the other, and where each sequence begins.

    Args:
        context_lengths: Tokens of each sequence including this step.
        block_table: Blocks of each sequence.
        ratio: Tokens per entry.
        rows_per_block: Entries per block.
        total: Sum of the sequences' entries, known on the host.

    Returns:
        Slots ``[total]`` and first rows ``[B]``.
    """
    counts = context_lengths // ratio
    ends = torch.cumsum(counts, 0).to(torch.int32)
    starts = ends - counts
    row = torch.arange(total, dtype=torch.int32, device=counts.device)
    sequence = torch.searchsorted(ends, row, right=True)
    entry = row - starts[sequence]
    slots = block_table[sequence, (entry // rows_per_block).long()] * rows_per_block + entry % rows_per_block
    return slots.to(torch.int32), starts.to(torch.int32)


@op("attention.context_indices", tolerance=_EXACT, row_axis="T")
def context_indices(
    entries: Annotated[Tensor, Shape("T", "S"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    starts: Annotated[Tensor, Shape("B"), Dtypes("i32")],
) -> Tensor:
    """Logical entries of each row's sequence -> rows of the gathered context ``[T, S]``; -1 stays -1."""
    return torch.where(entries >= 0, entries + starts[row_sequence.clamp_min(0).long()][:, None], -1).to(torch.int32)


def draw_step(draw: Draw, starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0) -> dict[str, Any]:
    """Row and sequence tensors of a step for cases; blocks are shuffled and distinct."""
    positions = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
    sequence = [index for index, length in enumerate(lengths) for _ in range(length)]
    count, blocks = len(starts), draw.sizes.get("J", 4)
    return {
        "positions": torch.tensor(positions + [0] * padding, dtype=torch.int32),
        "row_sequence": torch.tensor(sequence + [-1] * padding, dtype=torch.int32),
        "state_slots": draw.distinct(count + 3, count) + 1,
        "context_lengths": torch.tensor([s + n for s, n in zip(starts, lengths, strict=True)], dtype=torch.int32),
        "query_lengths": torch.tensor(lengths, dtype=torch.int32),
        "block_table": (draw.distinct(count * blocks, count * blocks) + 1).reshape(count, blocks),
    }


def _step(
    starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0, **limits: tuple[int, ...]
) -> Callable[[Draw], dict[str, Any]]:
    """The tensors of a step, and ``limits``: further tensors with one number for each sequence."""
    more = {name: torch.tensor(values, dtype=torch.int32) for name, values in limits.items()}
    return lambda draw: {**draw_step(draw, starts, lengths, padding), **more}


@window_slots.cases
def _window_slots_cases() -> Iterator[Case]:
    yield Case(
        "short_and_wrapped", T=4, B=4, window=8, ring=14, make=_step((0, 6, 7, 100), (1, 1, 1, 1)), required=True
    )
    yield Case("several_rows_and_padding", T=9, B=2, window=8, ring=14, make=_step((3, 40), (2, 5), 2), required=True)
    yield Case("no_rows", T=0, B=0, window=8, ring=14, make=_step((), ()), required=True)
    yield ErrorCase(
        "rows",
        T=1,
        B=1,
        window=8,
        ring=14,
        make=_step((0,), (1,)),
        stretch=("row_sequence", "T"),
        raises=ShapeError,
        match="row_sequence has T=2",
    )


@entry_metadata.cases
def _entry_metadata_cases() -> Iterator[Case]:
    for ratio in (1, 2):
        make = _step((0, 5, 31), (7, 1, 2), 2)
        yield Case(f"ratio_{ratio}", T=12, B=3, J=4, ratio=ratio, rows_per_block=16 // ratio, make=make, required=True)
        # A prefix that ends before, inside and behind the step's rows; at 6 and 33 inside a pair.
        for limits in ((0, 0, 0), (3, 6, 33), (7, 5, 40)):
            yield Case(
                f"ratio_{ratio}_store_from_{limits[0]}", T=12, B=3, J=4, ratio=ratio, rows_per_block=16 // ratio,
                make=_step((0, 5, 31), (7, 1, 2), 2, store_from=limits), required=True,
            )  # fmt: skip
    yield Case("no_rows", T=0, B=0, J=4, ratio=1, rows_per_block=16, make=_step((), ()), required=True)
    yield ErrorCase(
        "store_from",
        T=1,
        B=1,
        J=4,
        ratio=1,
        rows_per_block=16,
        make=_step((0,), (1,), store_from=(0,)),
        stretch=("store_from", "B"),
        raises=ShapeError,
        match="store_from has B=2",
    )
    yield ErrorCase(
        "positions",
        T=1,
        B=1,
        J=4,
        ratio=1,
        rows_per_block=16,
        make=_step((0,), (1,)),
        stretch=("positions", "T"),
        raises=ShapeError,
        match="T=1",
    )


@entry_slots.cases
def _entry_slots_cases() -> Iterator[Case]:
    def make(draw: Draw) -> dict[str, Any]:
        return {**draw_step(draw, (0, 5, 31), (7, 1, 2), 2), "entries": draw.integers(-1, 32, "T", "S")}

    yield Case("with_none", T=12, B=3, J=4, S=6, rows_per_block=8, make=make, required=True)
    yield ErrorCase(
        "entries",
        T=12,
        B=3,
        J=4,
        S=6,
        rows_per_block=8,
        make=make,
        stretch=("entries", "T"),
        raises=ShapeError,
        match="T=13",
    )


@context_gather.cases
def _context_gather_cases() -> Iterator[Case]:
    make = _step((0, 5, 31), (7, 1, 2))
    yield Case("ratio_1", B=3, J=4, ratio=1, rows_per_block=16, total=46, make=make, required=True)
    yield Case("ratio_2", B=3, J=4, ratio=2, rows_per_block=8, total=22, make=make, required=True)
    yield Case("nothing", B=1, J=4, ratio=2, rows_per_block=8, total=0, make=_step((0,), (1,)), required=True)
    yield ErrorCase(
        "table",
        B=1,
        J=4,
        ratio=1,
        rows_per_block=16,
        total=1,
        make=_step((0,), (1,)),
        stretch=("block_table", "B"),
        raises=ShapeError,
        match="B=2",
    )


@context_indices.cases
def _context_indices_cases() -> Iterator[Case]:
    def make(draw: Draw) -> dict[str, Any]:
        step = draw_step(draw, (0, 5, 31), (7, 1, 2), 2)
        return {
            "row_sequence": step["row_sequence"],
            "starts": draw.integers(0, 99, "B"),
            "entries": draw.integers(-1, 32, "T", "S"),
        }

    yield Case("with_none", T=12, B=3, S=6, make=make, required=True)
    yield ErrorCase(
        "entries", T=12, B=3, S=6, make=make, stretch=("entries", "T"), raises=ShapeError, match="row_sequence has T=12"
    )
