"""What a draft depends on: the context keys before its anchor and its own block, nothing else in the rings."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepinfer_core.model.draft import DraftInputs, DraftRows
from deepinfer_core.runtime.batch import int32_row
from deepinfer_core.runtime.executor import Drafts
from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches, differs
from tests.model.configs import dummy_model
from tests.model.conftest import IMAGES, Whole, feed_whole, random_tokens
from tests.model.driver import POISON, Driver, FedSequence
from tests.model.schedules import next_verification

WINDOW, BLOCK, NOISE = 32, 4, 709
ANCHOR = 17
"""A sampled token, not yet fed."""


def assert_same_drafts(found: Drafts, expected: Drafts, where: str) -> None:
    assert torch.equal(found.tokens, expected.tokens), where
    for name in ("logits", "hidden", "confidence_logits", "confidence"):
        assert_same(getattr(found, name), getattr(expected, name), f"{where}, {name}")


@pytest.mark.parametrize("length", [1, 5, 31, 32, 33, 37, 38, 75])
def test_drafts_read_the_window_before_the_anchor_only(mini_b: BoundModel, prompt: list[int], length: int) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt)
    driver.feed((sequence, length), prefill=True)
    expected = driver.draft((sequence, ANCHOR))

    driver.poison_dead(sequence)
    found = driver.draft((sequence, ANCHOR))

    assert_same_drafts(found, expected, f"anchor behind {length} tokens, dead rows poisoned")


def test_the_oldest_context_key_matters(mini_b: BoundModel, prompt: list[int]) -> None:
    """The test above can fail: the window before the anchor begins 32 positions before it."""
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt)
    driver.feed((sequence, 75), prefill=True)
    expected = driver.draft((sequence, ANCHOR))

    ring = driver.caches.draft_window[0]
    record = ring.storage[sequence.slot].unflatten(0, (ring.rows_per_block, -1))[(75 - WINDOW) % ring.rows_per_block]
    record.fill_(POISON)
    found = driver.draft((sequence, ANCHOR))

    assert differs(found.logits, expected.logits)


def test_earlier_drafts_and_rejected_rows_leave_no_trace(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole]
) -> None:
    driver, fresh, chance = Driver(mini_b), Driver(mini_b), random.Random(0)
    used, clean = driver.sequence(prompt, IMAGES), fresh.sequence(prompt, IMAGES)
    driver.feed((used, 29), prefill=True)

    for accepted in (0, 3, 1, 0, 2, 3, 3):
        driver.draft((used, prompt[used.length]))
        plan = next_verification(used, chance, BLOCK, accepted)
        driver.speculate((used, plan.drafts, plan.accepted))
        driver.draft((used, 5))

        fresh.feed((clean, used.length - clean.length), prefill=True)
        assert_same_drafts(
            driver.draft((used, ANCHOR)), fresh.draft((clean, ANCHOR)), f"anchor behind {used.length} tokens"
        )
    driver.feed((used, 1))
    assert_same_caches(driver.cached(used), whole[used.length].cached, "drafts were overwritten")


def test_context_keys_by_decode_equal_those_by_prefill(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole]
) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt, IMAGES)
    driver.feed((sequence, 20), prefill=True)

    for count in (1, 6, 2, 5, 3, 4, 6, 6, 6, 1):
        driver.feed((sequence, count))

    names = [name for name in whole[60].cached if name.startswith("draft_window")]
    assert len(names) == 2
    for name in names:
        assert len(whole[60].cached[name]) == WINDOW
        assert_same(driver.cached(sequence)[name], whole[60].cached[name], name)


def test_neighbours_and_their_order_change_no_draft(mini_b: BoundModel, prompt: list[int]) -> None:
    driver = Driver(mini_b)
    sequences = [driver.sequence(prompt) for _ in range(3)]
    driver.feed(*zip(sequences, (60, 3, 33), strict=True), prefill=True)
    alone = [driver.draft((s, ANCHOR + i)) for i, s in enumerate(sequences)]

    for order in ((2, 0, 1), (1, 2)):
        together = driver.draft(*((sequences[i], ANCHOR + i) for i in order))

        for place, i in enumerate(order):
            row = Drafts(**{name: getattr(together, name)[place : place + 1] for name in Drafts.__slots__})
            assert_same_drafts(row, alone[i], f"sequence {i} in {order}")


def test_every_row_of_a_block_sees_the_whole_block(mini_b: BoundModel, prompt: list[int]) -> None:
    """Another token in the last row changes all rows; the row of another position changes with its position."""
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt)
    driver.feed((sequence, 40), prefill=True)
    block = _block(sequence, [ANCHOR, NOISE, NOISE, NOISE])
    base = _forward(driver, block)

    changed = _forward(driver, replace(block, ids=int32_row([ANCHOR, NOISE, NOISE, 8])))

    assert all(differs(changed.base_logits[row], base.base_logits[row]) for row in range(BLOCK))
    assert differs(base.base_logits[1], base.base_logits[2])


def test_padding_requests_change_neither_drafts_nor_rings(mini_b: BoundModel, prompt: list[int]) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt)
    driver.feed((sequence, 40), prefill=True)
    block = _block(sequence, [ANCHOR, NOISE, NOISE, NOISE])
    base = _forward(driver, block)
    before = driver.caches.slot_pool.clone()
    padding = DraftInputs(
        ids=int32_row([0] * BLOCK), positions=int32_row([0] * BLOCK), row_sequence=int32_row([-1] * BLOCK),
        state_slots=int32_row([0]),
    )  # fmt: skip

    driver.poison_dead(sequence)
    joined = {name: torch.cat((getattr(block, name), getattr(padding, name))) for name in DraftInputs.__slots__}
    found = _forward(driver, DraftInputs(**joined))

    assert_same(found.base_logits[:BLOCK], base.base_logits, "rows of the real request")
    assert_same(found.hidden[:BLOCK], base.hidden, "hidden rows of the real request")
    assert found.hidden.isfinite().all(), "a padding row attends to nothing"
    assert driver.caches.slot_pool[0].eq(POISON).all(), "the dummy slot is not written"
    live = driver.cached(sequence)["draft_window.0"]
    driver.caches.slot_pool.copy_(before)
    assert_same(live, driver.cached(sequence)["draft_window.0"], "context keys")


def test_a_model_with_a_long_block_drafts_and_verifies_all_of_it(tmp_path: Path) -> None:
    """Nine rows in a step and a block of eight: more than the released model ever needs."""
    model, text = dummy_model(tmp_path, {"dspark_block_size": 8}), random_tokens(48, seed=2)
    whole, driver = feed_whole(model, text), Driver(model)
    sequence = driver.sequence(text)
    driver.feed((sequence, 30), prefill=True)

    for accepted in (0, 8, 3):
        start, before = sequence.length, driver.cached(sequence)
        driver.draft((sequence, text[start]))
        assert_same_caches(driver.cached(sequence), before, "drafting damages no context key")
        wrong = [(t + 1) % 250 for t in text[start + 1 + accepted : start + 9]]
        (kept,) = driver.speculate((sequence, text[start + 1 : start + 1 + accepted] + wrong, accepted))

        assert_same(kept, whole.logits[start : sequence.length], f"{accepted} of 8 drafts accepted")


def _block(sequence: FedSequence, ids: list[int]) -> DraftInputs:
    return DraftInputs(
        ids=int32_row(ids), positions=int32_row([sequence.length + i for i in range(BLOCK)]),
        row_sequence=int32_row([0] * BLOCK), state_slots=int32_row([sequence.slot]),
    )  # fmt: skip


@torch.inference_mode()
def _forward(driver: Driver, inputs: DraftInputs) -> DraftRows:
    module = driver.model.graph.draft
    assert module is not None
    return module.forward(inputs, driver.caches.draft_window)
