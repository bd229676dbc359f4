"""Nothing that the caches hold for nobody is ever used: it may be NaN."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches, differs
from tests.model.conftest import IMAGES, Whole
from tests.model.driver import POISON, Driver, FedSequence
from tests.model.schedules import next_verification


@pytest.mark.parametrize("chunk", [1, 5, 26, 41])
def test_prompt_chunks_read_live_rows_only(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole], chunk: int
) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt[: 40 * chunk], IMAGES)

    while (start := sequence.length) < len(sequence.tokens):
        driver.poison_dead(sequence)
        (logits,) = driver.feed((sequence, min(chunk, len(sequence.tokens) - start)), prefill=True)

        where = f"chunk from {start}, dead rows poisoned"
        assert_same(logits, whole[sequence.length].logits[start:], where)
        assert_same_caches(driver.cached(sequence), whole[sequence.length].cached, where)


def test_decode_reads_live_rows_only(mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole]) -> None:
    """Two sequences with drafts and padding rows; whatever was rejected is poisoned before the next step."""
    driver, chance = Driver(mini_b), random.Random(0)
    sequences = [driver.sequence(prompt[:60], IMAGES), driver.sequence(prompt, IMAGES)]
    driver.feed((sequences[1], 37), prefill=True)

    while live := [s for s in sequences if s.length < len(s.tokens)]:
        starts = [s.length for s in live]
        plans = [next_verification(s, chance) for s in live]
        driver.poison_dead(*sequences)
        logits = driver.speculate(
            *((s, p.drafts, p.accepted) for s, p in zip(live, plans, strict=True)), padding=chance.randint(0, 2)
        )

        for sequence, start, kept in zip(live, starts, logits, strict=True):
            where = f"rows from {start}, dead rows poisoned"
            assert_same(kept, whole[sequence.length].logits[start:], where)
            assert_same_caches(driver.cached(sequence), whole[sequence.length].cached, where)


Spoil = Callable[[Driver, FedSequence], None]

LIVE: dict[str, Spoil] = {
    "oldest_window_row": lambda driver, s: _fill(driver.window_record(s, s.length - 31)),
    "newest_window_row": lambda driver, s: _fill(driver.window_record(s, s.length - 1)),
    "open_pair": lambda driver, s: _fill(list(driver.caches.compressor.values())),
    "entries": lambda driver, s: _fill([c.storage for c in driver.caches.main.values()]),
    "index_keys": lambda driver, s: _fill([c.storage for c in driver.caches.index.values()]),
}


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("prefill", [True, False], ids=["prefill", "decode"])
def test_every_kind_of_live_row_matters(mini_b: BoundModel, prompt: list[int], name: str, prefill: bool) -> None:
    """The tests above can fail: a poisoned live row reaches the logits."""
    driver = Driver(mini_b)
    sound, spoilt = driver.sequence(prompt), driver.sequence(prompt)
    driver.feed((sound, 61), (spoilt, 61), prefill=True)
    (expected,) = driver.feed((sound, 1), prefill=prefill)

    LIVE[name](driver, spoilt)
    (found,) = driver.feed((spoilt, 1), prefill=prefill)

    assert differs(found, expected)


@pytest.mark.parametrize("prefill", [True, False], ids=["prefill", "decode"])
def test_the_window_ends_where_it_should(mini_b: BoundModel, prompt: list[int], prefill: bool) -> None:
    """A query attends to 32 keys, its own included: the 32nd before it does not matter, the 31st does (above)."""
    driver = Driver(mini_b)
    sound, spoilt = driver.sequence(prompt), driver.sequence(prompt)
    driver.feed((sound, 61), (spoilt, 61), prefill=True)
    (expected,) = driver.feed((sound, 1), prefill=prefill)

    _fill(driver.window_record(spoilt, spoilt.length - 32))
    (found,) = driver.feed((spoilt, 1), prefill=prefill)

    assert_same(found, expected, "key just outside the window")


def _fill(places: list[torch.Tensor]) -> None:
    for place in places:
        place.fill_(POISON if place.dtype == torch.uint8 else torch.nan)
