"""Where the rows of a sequence lie makes no difference, nor with whom it shares blocks."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches
from tests.model.conftest import feed_whole, random_tokens
from tests.model.driver import Driver, FedSequence

TEXT = random_tokens(300, seed=3, below=700)
"""Three blocks, the last of them partly used."""

PLACES = {"contiguous": (1, [1, 2, 3]), "shuffled": (5, [9, 2, 14]), "descending": (8, [16, 15, 3])}


def feed_all(driver: Driver, sequence: FedSequence) -> torch.Tensor:
    """Chunks that end inside and at the ends of blocks, decode rows over the last block border."""
    chunks = [driver.feed((sequence, count), prefill=True)[0] for count in (100, 28, 125)]
    rows = [driver.feed((sequence, count))[0] for count in (2, 6, 1)]
    return torch.cat((*chunks, *rows, *driver.feed((sequence, 38), prefill=True)))


@pytest.mark.parametrize("place", ["shuffled", "descending"])
def test_block_and_slot_numbers_do_not_matter(mini_b: BoundModel, place: str) -> None:
    """The same bits, not only the same values."""
    results = {}
    for name in ("contiguous", place):
        driver = Driver(mini_b, num_slots=8, blocks_each=2)
        sequence = FedSequence(list(TEXT), *PLACES[name])
        results[name] = feed_all(driver, sequence), driver.cached(sequence)

    (expected, expected_rows), (found, rows) = results["contiguous"], results[place]
    assert torch.equal(found, expected)
    assert all(torch.equal(rows[name], expected_rows[name]) for name in expected_rows)


def test_a_text_of_several_blocks_equals_one_step(mini_b: BoundModel) -> None:
    driver = Driver(mini_b, num_slots=8, blocks_each=2)
    sequence = FedSequence(list(TEXT), *PLACES["shuffled"])

    logits = feed_all(driver, sequence)

    expected = feed_whole(mini_b, TEXT)
    assert_same(logits, expected.logits, "logits")
    assert_same_caches(driver.cached(sequence), expected.cached, "caches")


def test_sequences_with_a_common_start_share_its_blocks(mini_b: BoundModel) -> None:
    """The second sequence takes the first's block and a copy of its state; then both go on, step by step in turn."""
    driver = Driver(mini_b, num_slots=2, blocks_each=4)
    other = TEXT[:BLOCK_TOKENS] + random_tokens(60, seed=4, below=700)
    first, second = FedSequence(TEXT[:188], 1, [6, 3]), FedSequence(other, 2, [6, 8])
    driver.feed((first, BLOCK_TOKENS), prefill=True)
    driver.caches.slot_pool[second.slot] = driver.caches.slot_pool[first.slot]
    second.length = BLOCK_TOKENS

    for prefill, counts in ((True, (20, 7)), (False, (4, 1)), (False, (1, 6)), (True, (35, 46))):
        ends = driver.feed(*zip((first, second), counts, strict=True), prefill=prefill)

    for sequence, logits in zip((first, second), ends, strict=True):
        expected = feed_whole(mini_b, sequence.tokens)
        assert_same(logits, expected.logits[-len(logits) :], f"slot {sequence.slot}")
        assert_same_caches(driver.cached(sequence), expected.cached, f"slot {sequence.slot}")


def test_a_full_shared_block_is_never_written_again(mini_b: BoundModel) -> None:
    driver = Driver(mini_b, num_slots=1, blocks_each=3)
    sequence = FedSequence(list(TEXT), 1, [3, 1, 2])
    driver.feed((sequence, BLOCK_TOKENS), prefill=True)
    before = driver.caches.block_pool[3].clone()

    driver.speculate((sequence, [*TEXT[129:131], 7, 8, 9], 2))
    driver.speculate((sequence, [7, 8, 9, 10, 11], 0))
    driver.feed((sequence, 100), prefill=True)

    assert torch.equal(driver.caches.block_pool[3], before)
