"""What a draft depends on: the context keys before its anchor and its own block, nothing else in the rings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer_core.model.draft import DraftInputs, DraftRows
from deepinfer_core.runtime.batch import int32_row
from deepinfer_core.runtime.executor import Drafts
from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches, differs
from tests.model.conftest import IMAGES, Whole, feed_whole
from tests.model.driver import POISON, Driver, FedSequence

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
    driver, fresh = Driver(mini_b), Driver(mini_b)
    used, clean = driver.sequence(prompt, IMAGES), fresh.sequence(prompt, IMAGES)
    driver.feed((used, 29), prefill=True)

    for accepted in (0, 3, 1, 0, 2, 3, 3):
        driver.draft((used, prompt[used.length]))
        true = prompt[used.length + 1 : used.length + 1 + accepted]
        driver.speculate((used, true + [(t + 1) % 700 for t in prompt[used.length + 1 + accepted :][: 3 - accepted]], accepted))
        driver.draft((used, 5))

        fresh.feed((clean, used.length - clean.length), prefill=True)
        where = f"after {used.length} tokens"
        assert_same_drafts(driver.draft((used, ANCHOR)), fresh.draft((clean, ANCHOR)), where)
    driver.feed((used, 1))
    assert_same_caches(driver.cached(used), whole[used.length].cached, "the block's keys are overwritten or out of reach")


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
