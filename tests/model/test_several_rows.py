"""Several query rows in a step are as good as one at a time, and rows that are taken back leave no trace."""

from __future__ import annotations

import random

import pytest

from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches
from tests.model.conftest import IMAGES, Whole
from tests.model.driver import Driver
from tests.model.schedules import next_verification


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6])
def test_accepted_rows_equal_single_steps(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole], rows: int
) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt, IMAGES)

    while sequence.length < len(prompt):
        start = sequence.length
        (logits,) = driver.feed((sequence, min(rows, len(prompt) - start)))

        assert_same(logits, whole[sequence.length].logits[start:], f"rows {start} .. {sequence.length - 1}")
        assert_same_caches(driver.cached(sequence), whole[sequence.length].cached, f"after {sequence.length} tokens")


@pytest.mark.parametrize(("rows", "accepted"), [(6, 0), (6, 1), (6, 4), (0, -1)], ids=str)
def test_rejected_rows_leave_no_trace(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole], rows: int, accepted: int
) -> None:
    """From the start and from a prompt of odd length at once; wrong drafts reach past the end of the text too."""
    driver, chance = Driver(mini_b), random.Random(rows * 10 + accepted)
    sequences = [driver.sequence(prompt[:50], IMAGES), driver.sequence(prompt, IMAGES)]
    driver.feed((sequences[1], 47), prefill=True)

    while live := [s for s in sequences if s.length < len(s.tokens)]:
        starts = [s.length for s in live]
        plans = [next_verification(s, chance, rows, accepted) for s in live]
        logits = driver.speculate(*((s, p.drafts, p.accepted) for s, p in zip(live, plans, strict=True)))

        for sequence, start, plan, kept in zip(live, starts, plans, logits, strict=True):
            where = f"{1 + len(plan.drafts)} rows from {start}, {plan.accepted} drafts accepted"
            assert_same(kept, whole[sequence.length].logits[start:], where)
            assert_same_caches(driver.cached(sequence), whole[sequence.length].cached, where)


def test_a_prompt_chunk_may_follow_rejected_rows(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole]
) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt, IMAGES)
    driver.feed((sequence, 45), prefill=True)

    driver.speculate((sequence, [5, 6, 7, 8, 9], 0))
    (logits,) = driver.feed((sequence, 30), prefill=True)

    assert_same(logits, whole[76].logits[46:], "chunk after rejection")
    assert_same_caches(driver.cached(sequence), whole[76].cached, "chunk after rejection")
