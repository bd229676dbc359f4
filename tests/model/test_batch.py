"""A sequence computes the same whoever shares its steps."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches
from tests.model.conftest import feed_whole, random_tokens
from tests.model.driver import Driver

TEXTS = [random_tokens(count, seed=count, below=700) for count in (70, 41, 9, 52)]
PROMPTS = [63, 33, 1, 44]
STEPS = [(1, 2, 6, 3), (3, 1, 1, 2), (1, 4, 1, 1)]
"""Decode rows of each text per step."""


def run(
    model: BoundModel, members: list[int], padding: int = 0
) -> tuple[dict[int, list[Tensor]], list[dict[str, Tensor]]]:
    """Logits by text and step of some of the texts together; what the caches hold of the members afterwards."""
    driver = Driver(model, num_slots=len(members))
    sequences = [driver.sequence(TEXTS[i]) for i in members]
    steps = [driver.feed(*((s, PROMPTS[i]) for s, i in zip(sequences, members, strict=True)), prefill=True)]
    for counts in STEPS:
        parts = [(s, counts[i]) for s, i in zip(sequences, members, strict=True)]
        steps.append(driver.feed(*parts, padding=padding))
    by_text = {i: [step[place] for step in steps] for place, i in enumerate(members)}
    return by_text, [driver.cached(s) for s in sequences]


@pytest.fixture(scope="module")
def alone(mini_b: BoundModel) -> list[tuple[list[Tensor], dict[str, Tensor]]]:
    """Every text by itself."""
    found = []
    for i in range(len(TEXTS)):
        logits, cached = run(mini_b, [i])
        found.append((logits[i], cached[0]))
    return found


@pytest.mark.parametrize(
    ("members", "padding"),
    [([0, 1, 2, 3], 0), ([3, 1, 0, 2], 0), ([2, 3], 0), ([2], 3), ([1, 0], 1), ([0, 2, 3], 5)],
    ids=str,
)
def test_neighbours_order_and_padding_change_nothing(
    mini_b: BoundModel, alone: list[tuple[list[Tensor], dict[str, Tensor]]], members: list[int], padding: int
) -> None:
    logits, cached = run(mini_b, members, padding)

    for i, rows in zip(members, cached, strict=True):
        expected_logits, expected_rows = alone[i]
        for step, (found, expected) in enumerate(zip(logits[i], expected_logits, strict=True)):
            assert_same(found, expected, f"text {i}, step {step}")
        assert_same_caches(rows, expected_rows, f"text {i}")


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_padding_beside_the_first_tokens_of_a_sequence_changes_nothing(mini_b: BoundModel, rows: int) -> None:
    """Padding rows have position 0, which the sequence still needs."""
    driver, whole = Driver(mini_b, num_slots=1), feed_whole(mini_b, TEXTS[2])
    sequence = driver.sequence(TEXTS[2])

    found = [driver.feed((sequence, rows), padding=2)[0] for _ in range(len(TEXTS[2]) // rows)]

    assert_same(torch.cat(found), whole.logits[: sequence.length], "from the first token on")


def test_padding_writes_to_nobody(mini_b: BoundModel) -> None:
    driver = Driver(mini_b, num_slots=3)
    sequence, neighbour = driver.sequence(TEXTS[0]), driver.sequence(TEXTS[1])
    driver.feed((sequence, 20), (neighbour, 30), prefill=True)
    slot, block = driver.caches.slot_pool[neighbour.slot].clone(), driver.caches.block_pool[neighbour.blocks].clone()

    driver.feed((sequence, 3), padding=4)

    assert driver.caches.slot_pool[neighbour.slot].equal(slot)
    assert driver.caches.block_pool[neighbour.blocks].equal(block)


def test_a_slot_serves_the_next_sequence_as_if_it_were_new(mini_b: BoundModel) -> None:
    """Nobody clears a slot or a block between two sequences."""
    driver, chance = Driver(mini_b, num_slots=1), random.Random(5)
    first = driver.sequence(TEXTS[0])
    driver.feed((first, 70), prefill=True)
    second, fresh = driver.sequence(TEXTS[1]), Driver(mini_b, num_slots=1)
    second.slot, second.blocks = first.slot, first.blocks
    expected = fresh.sequence(TEXTS[1])

    while second.length < len(TEXTS[1]):
        count = min(chance.randint(1, 6), len(TEXTS[1]) - second.length)
        prefill = chance.random() < 0.5
        (found,) = driver.feed((second, count), prefill=prefill)

        assert_same(found, fresh.feed((expected, count), prefill=prefill)[0], f"after {second.length} tokens")
