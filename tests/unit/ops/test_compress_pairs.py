"""Pairs of tokens become entries, however the tokens arrive (spec attention/02)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from deepinfer_core.config.architecture import MAX_BACKTRACK_TOKENS
from deepinfer_core.model.cache_layout import compressor_ring_rows
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs

LENGTH, WIDTH, SLOT = 41, 8, 2
GATE, VALUE = (torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(n)) * 3 for n in (1, 2))
RING_ROWS = compressor_ring_rows(2)


@dataclass
class Rows:
    """Rows of one sequence in a step: its numbers, its first position, its state slot."""

    gate: Tensor
    value: Tensor
    start: int
    slot: int = SLOT


def true_rows(start: int, end: int, slot: int = SLOT) -> Rows:
    return Rows(GATE[start:end], VALUE[start:end], start, slot)


def empty_ring(rows: int = RING_ROWS) -> Tensor:
    """What was never written is NaN."""
    return torch.full((4, rows, 2, WIDTH), torch.nan)


def step(ring: Tensor, *sequences: Rows) -> list[Tensor]:
    """Pooled rows of each sequence."""
    lengths = [len(s.gate) for s in sequences]
    columns = (
        [p for s, n in zip(sequences, lengths, strict=True) for p in range(s.start, s.start + n)],
        [i for i, n in enumerate(lengths) for _ in range(n)],
        [s.slot for s in sequences],
        [s.start + n for s, n in zip(sequences, lengths, strict=True)],
    )
    gate, value = torch.cat([s.gate for s in sequences]), torch.cat([s.value for s in sequences])
    pooled = compress_pairs(gate, value, *(torch.tensor(c, dtype=torch.int32) for c in columns), ring, out="f32")
    return list(pooled.split(lengths))


def expected_rows() -> Tensor:
    """The definition, channel by channel, in double precision; zeros where no pair closes."""
    rows = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
    for odd in range(1, LENGTH, 2):
        first, second = (
            GATE[odd - 1 : odd + 1].double().exp() / GATE[odd - 1 : odd + 1].double().exp().sum(0)
        ).unbind()
        rows[odd] = first * VALUE[odd - 1].double() + second * VALUE[odd].double()
    return rows


WHOLE = step(empty_ring(), true_rows(0, LENGTH))[0]


def test_each_pair_is_weighed_by_the_softmax_of_its_gates_channel_by_channel() -> None:
    torch.testing.assert_close(WHOLE.double(), expected_rows(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (5,), (1, 8), (20, 1, 3), (7, 7, 2)], ids=str)
def test_any_chunking_gives_the_same_bits(sizes: tuple[int, ...]) -> None:
    ring, start, rows = empty_ring(), 0, []

    for turn in range(LENGTH):
        end = min(start + sizes[turn % len(sizes)], LENGTH)
        if start < end:
            rows += step(ring, true_rows(start, end))
        start = end

    assert torch.equal(torch.cat(rows), WHOLE)


def run_with_rejections(ring: Tensor, chance: random.Random) -> bool:
    """Steps of 1 .. 6 rows of which the last ones may be wrong; whether all kept rows were right."""
    start = 0
    while start < LENGTH:
        rows = min(chance.choice([1, 2, 6, 6]), LENGTH - start)
        kept = chance.choice([1, rows, chance.randint(1, rows)])
        wrong = torch.full((rows - kept, WIDTH), 9.0)
        true = true_rows(start, start + kept)
        (pooled,) = step(ring, Rows(torch.cat((true.gate, wrong)), torch.cat((true.value, -wrong)), start))
        if not torch.equal(pooled[:kept], WHOLE[start : start + kept]):
            return False
        start += kept
    return True


def test_several_rows_with_rejections_equal_the_whole() -> None:
    assert all(run_with_rejections(empty_ring(), random.Random(seed)) for seed in range(30))


def test_a_ring_shorter_than_the_longest_step_fails() -> None:
    """This op reads the ring before it writes, so that six rows would do; the seventh is for those that store first."""
    assert all(run_with_rejections(empty_ring(MAX_BACKTRACK_TOKENS), random.Random(seed)) for seed in range(30))
    assert not all(run_with_rejections(empty_ring(MAX_BACKTRACK_TOKENS - 1), random.Random(seed)) for seed in range(30))


@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 6), (0, 7), (0, 20), (3, 2), (5, 30)])
def test_after_a_chunk_the_ring_holds_its_last_rows_and_nothing_else_changed(start: int, length: int) -> None:
    ring = torch.randn(4, RING_ROWS, 2, WIDTH, generator=torch.Generator().manual_seed(3))
    expected = ring.clone()

    step(ring, true_rows(start, start + length))

    for position in range(max(start, start + length - RING_ROWS), start + length):
        expected[SLOT, position % RING_ROWS] = torch.stack((GATE[position], VALUE[position]))
    assert torch.equal(ring, expected)


def test_equal_gates_give_the_mean() -> None:
    gate = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(4)).repeat(2, 1)

    (pooled,) = step(empty_ring(), Rows(gate, VALUE[:2], 0))

    assert torch.equal(pooled[1], VALUE[0] * 0.5 + VALUE[1] * 0.5)


def test_sequences_of_a_step_do_not_meet() -> None:
    """A pair never spans two sequences, whatever their parities."""
    ring = empty_ring()
    step(ring, true_rows(0, 5, slot=1), true_rows(0, 8, slot=3))

    first, second, third = step(ring, true_rows(5, 8, slot=1), true_rows(0, 3, slot=2), true_rows(8, 9, slot=3))

    assert torch.equal(first, WHOLE[5:8])
    assert torch.equal(second, WHOLE[:3])
    assert torch.equal(third, WHOLE[8:9])
