"""Window rings are long enough for what may be rolled back, and no row longer than needed (spec attention/07)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from deepinfer_core.config.architecture import MAX_BACKTRACK_TOKENS
from deepinfer_core.model.cache_layout import compressor_ring_rows
from deepinfer_core.ops.attention.draft_slots import draft_slots
from deepinfer_core.ops.attention.metadata import window_slots
from deepinfer_core.ops.attention.window_indices import window_indices

WINDOW, SLOT, LENGTH = 8, 2, 60
SHORTEST = WINDOW + MAX_BACKTRACK_TOKENS - 1


@dataclass
class HeldPositions:
    """A ring of which every row remembers the position that was stored there last."""

    rows: int

    def __post_init__(self) -> None:
        self.held = torch.full((SLOT + 2, self.rows), -99).flatten()

    def decode(self, positions: Tensor) -> bool:
        """Store all rows, then read; whether every row finds exactly its window."""
        slots, stores = window_slots(
            positions, torch.zeros_like(positions), int32([SLOT]), window=WINDOW, ring=self.rows
        )
        self.held[stores.long()] = positions.long()
        return all(
            self.held[row[row >= 0].long()].tolist() == list(range(max(0, p - WINDOW + 1), p + 1))
            for p, row in zip(positions.tolist(), slots, strict=True)
        )

    def prefill(self, positions: Tensor) -> bool:
        """Read the history, then store the last rows; whether every row finds exactly its window."""
        end, count = int(positions[-1]) + 1, len(positions)
        indices, history, stores = window_indices(
            positions, torch.zeros_like(positions), int32([SLOT]), int32([end]), int32([count]),
            window=WINDOW, ring=self.rows,
        )  # fmt: skip
        buffer = torch.cat((torch.where(history < 0, -1, self.held[history.long()]), positions.long()))
        kept = stores >= 0
        self.held[stores[kept].long()] = positions[kept].long()
        return int(kept.sum()) == min(self.rows, count) and all(
            buffer[row[row >= 0].long()].tolist() == list(range(max(0, p - WINDOW + 1), p + 1))
            for p, row in zip(positions.tolist(), indices, strict=True)
        )


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def span(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.int32)


def run(rows: int, chance: random.Random, *, prompts: bool = True) -> bool:
    """Prompt chunks and decode steps of 1 .. 6 rows of which some are taken back; whether all reads were right."""
    ring, start = HeldPositions(rows), 0
    while start < LENGTH:
        if prompts and chance.random() < 0.3:
            count = chance.randint(1, 25)
            right, start = ring.prefill(span(start, count)), start + count
        else:
            count = chance.choice([1, 2, MAX_BACKTRACK_TOKENS, MAX_BACKTRACK_TOKENS])
            right, start = ring.decode(span(start, count)), start + chance.randint(1, count)
        if not right:
            return False
    return True


def test_the_shortest_ring_serves_every_schedule() -> None:
    for rows in (SHORTEST, SHORTEST + 1):
        assert all(run(rows, random.Random(seed)) for seed in range(40))


def test_a_ring_one_row_shorter_fails() -> None:
    assert not all(run(SHORTEST - 1, random.Random(seed)) for seed in range(40))


def test_a_ring_one_row_shorter_fails_by_drafts_alone() -> None:
    assert not all(run(SHORTEST - 1, random.Random(seed), prompts=False) for seed in range(40))


@pytest.mark.parametrize("block", [1, 2, 5])
def test_a_draft_block_reads_distinct_rows_of_the_shortest_ring(block: int) -> None:
    positions, sequence = span(50, block), int32([0] * block)

    slots, stores = draft_slots(positions, sequence, int32([SLOT]), window=WINDOW, ring=WINDOW + block, block=block)

    assert all(len(set(row.tolist())) == WINDOW + block for row in slots)
    assert set(stores.tolist()) == set(slots[0, WINDOW:].tolist())
    assert torch.equal(slots, slots[:1].expand_as(slots)), "all rows of a block read the same"


def pair_survives(rows: int, store_first: bool) -> bool:
    """Whether an open pair's first row outlives every rejection and the stores of the step that closes it."""
    for wrong in range(MAX_BACKTRACK_TOKENS):
        held = {0: 0}
        later = [*range(1, 1 + wrong), *(range(1, 1 + MAX_BACKTRACK_TOKENS) if store_first else ())]
        held.update({position % rows: position for position in later})
        if held[0] != 0:
            return False
    return True


@pytest.mark.parametrize(("store_first", "shortest"), [(True, 7), (False, 6)])
def test_a_compressor_ring_serves_both_orders_of_store_and_read(store_first: bool, shortest: int) -> None:
    assert compressor_ring_rows(2) == 7
    assert pair_survives(shortest, store_first)
    assert not pair_survives(shortest - 1, store_first)
