"""Two neighbouring tokens become one compressed entry (ratio 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import TORCH_DTYPES, Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("kv_cache.compress_pairs", tolerance=Tolerance.one_rounding("exponentials"), mutates=("ring",))
def compress_pairs(
    gate: Annotated[Tensor, Shape("T", "D"), Dtypes("f32", "f64")],
    value: Annotated[Tensor, Shape("T", "D"), Dtypes("f32", "f64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    row_sequence: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    state_slots: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    context_lengths: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    ring: Annotated[Tensor, Shape("M", "_", 2, "D"), Dtypes("f32", "f64")],
    *,
    out: str,
) -> Tensor:
    """Pool each pair of positions ``2j, 2j + 1`` channel by channel, weighed by a softmax of the gates.

    Serves prefill chunks and decode alike: the partner of a row is the row before it when that belongs
    to the same sequence, else it is read from the ring (before the ring is written). See spec attention/02.

    Args:
        gate: Gate logits of the step's rows.
        value: Values of the step's rows.
        positions: Absolute positions; rows of one sequence are contiguous and ascending.
        row_sequence: Index of the row's sequence in the step; -1 for padding rows, which change nothing.
        state_slots: State slot of each sequence (0 is the dummy).
        context_lengths: Length of each sequence including this step.
        ring: Gates and values of the latest positions, row ``position mod ring length``; the last rows of
            each sequence are written.
        out: Element type of the result.

    Returns:
        ``[T, D]``: the pooled entry at rows that close a pair (odd positions), zeros elsewhere.
    """
    sequence = row_sequence.clamp_min(0).long()
    slot, length = state_slots[sequence].long(), ring.shape[1]
    inside = torch.zeros_like(row_sequence, dtype=torch.bool)
    inside[1:] = row_sequence[1:] == row_sequence[:-1]
    before = ring[slot, (positions.long() - 1) % length]
    partner_gate = torch.where(inside.unsqueeze(1), gate.roll(1, 0), before[:, 0])
    partner_value = torch.where(inside.unsqueeze(1), value.roll(1, 0), before[:, 1])
    weight = torch.softmax(torch.stack((partner_gate, gate)), 0)
    pooled = weight[0] * partner_value + weight[1] * value
    valid = row_sequence >= 0
    closing = (valid & (positions % 2 == 1)).unsqueeze(1)
    _write_ring(ring, slot, gate, value, positions, valid & (positions >= context_lengths[sequence] - length))
    return torch.where(closing, pooled, torch.zeros((), dtype=pooled.dtype, device=pooled.device)).to(TORCH_DTYPES[out])


def _write_ring(ring: Tensor, slot: Tensor, gate: Tensor, value: Tensor, positions: Tensor, kept: Tensor) -> None:
    """Write kept rows; the others write the dummy's own contents back to it."""
    target = torch.where(kept, slot, 0)
    row = torch.where(kept, positions.long() % ring.shape[1], 0)
    rows = torch.stack((gate, value), 1).to(ring.dtype)
    ring[target, row] = torch.where(kept[:, None, None], rows, ring[0, 0])


def _inputs(
    starts: tuple[int, ...], lengths: tuple[int, ...], padding: int = 0, ring_rows: int = 7
) -> Callable[[Draw], dict[str, Any]]:
    """Sequences with ``lengths`` rows in the step, beginning at positions ``starts``."""

    def make(draw: Draw) -> dict[str, Any]:
        positions = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
        sequence = [index for index, length in enumerate(lengths) for _ in range(length)]
        contexts = [start + length for start, length in zip(starts, lengths, strict=True)]
        return {
            "positions": torch.tensor(positions + [0] * padding, dtype=torch.int32),
            "row_sequence": torch.tensor(sequence + [-1] * padding, dtype=torch.int32),
            "state_slots": draw.distinct(draw.sizes["M"] - 1, len(starts)) + 1,
            "context_lengths": torch.tensor(contexts, dtype=torch.int32),
            "ring": draw.normal("M", ring_rows, 2, "D", dtype="f64" if draw.dtype == "f64" else "f32"),
        }

    return make


@compress_pairs.cases
def _cases() -> Iterator[Case]:
    yield Case("prompt_from_start", T=9, B=1, M=3, D=64, out="bf16", make=_inputs((0,), (9,)), required=True)
    yield Case("chunk_from_odd_position", T=6, B=1, M=3, D=64, out="bf16", make=_inputs((5,), (6,)), required=True)
    yield Case("decode_one_row", T=3, B=3, M=5, D=64, out="bf16", make=_inputs((4, 7, 1), (1, 1, 1)), required=True)
    yield Case(
        "decode_several_rows", T=11, B=3, M=5, D=64, out="bf16", make=_inputs((4, 7, 0), (6, 4, 1)), required=True
    )
    yield Case("padding_rows", T=5, B=2, M=5, D=64, out="bf16", make=_inputs((3, 8), (1, 1), padding=3), required=True)
    yield Case("chunk_longer_than_ring", T=40, B=2, M=3, D=32, out="f32", make=_inputs((1, 2), (19, 21)))
    yield Case("no_rows", T=0, B=0, M=2, D=32, out="bf16", make=_inputs((), ()), required=True)
    yield ErrorCase(
        "value",
        T=2,
        B=1,
        M=2,
        D=8,
        out="bf16",
        make=_inputs((0,), (2,)),
        stretch=("value", "T"),
        raises=ShapeError,
        match="value has T=3",
    )
