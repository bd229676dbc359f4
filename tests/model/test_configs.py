"""Every valid config computes the same however its input is cut; not only the one that was released."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches, differs
from tests.model.configs import CONFIGS, WINDOW, dummy_model
from tests.model.conftest import Whole, feed_whole, random_tokens
from tests.model.driver import Driver, FedSequence
from tests.model.random_configs import random_config
from tests.model.schedules import next_verification

if TYPE_CHECKING:
    from torch import Tensor

TEXT = random_tokens(3 * WINDOW, seed=2)
SAME_BACKBONE = ("everything", "no_draft", "two_draft_layers_short_block")


@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_drafts_and_poison_change_nothing(name: str, tmp_path: Path) -> None:
    check(dummy_model(tmp_path, CONFIGS[name]), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_configs_too(seed: int, tmp_path: Path) -> None:
    check(dummy_model(tmp_path, random_config(seed)), seed)


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_of_a_config_have_an_effect(name: str, tmp_path: Path) -> None:
    """The variations above vary something: other logits than those of the config with every part in it."""
    (plain_folder := tmp_path / "plain").mkdir()
    plain = feed_whole(dummy_model(plain_folder, CONFIGS["everything"]), TEXT)

    changed = feed_whole(dummy_model(tmp_path, CONFIGS[name]), TEXT)

    assert differs(changed.logits, plain.logits) == (name not in SAME_BACKBONE)


def check(model: BoundModel, seed: int) -> None:
    """A text in prompt chunks, then by verification steps; rows that nobody may read are poisoned before each step."""
    whole, chance = feed_whole(model, TEXT), random.Random(seed)
    driver = Driver(model)
    in_chunks, in_drafts = [driver.sequence(TEXT) for _ in range(2)], [driver.sequence(TEXT) for _ in range(2)]

    sizes = (3, 5)
    while live := [(s, min(n, left(s))) for s, n in zip(in_chunks, sizes, strict=True) if left(s)]:
        driver.poison_dead(*in_chunks)
        logits = driver.feed(*live, prefill=True)
        compare(whole, [s for s, _ in live], logits)
    for sequence in in_chunks:
        assert_same_caches(driver.cached(sequence), whole.cached, "in chunks")

    while verified := [s for s in in_drafts if left(s)]:
        plans = [next_verification(s, chance) for s in verified]
        driver.poison_dead(*in_drafts)
        steps = [(s, p.drafts, p.accepted) for s, p in zip(verified, plans, strict=True)]
        compare(whole, verified, driver.speculate(*steps, padding=chance.randint(0, 1)))
    for sequence in in_drafts:
        assert_same_caches(driver.cached(sequence), whole.cached, "with drafts")


def left(sequence: FedSequence) -> int:
    return len(sequence.tokens) - sequence.length


def compare(whole: Whole, sequences: list[FedSequence], logits: list[Tensor]) -> None:
    for sequence, rows in zip(sequences, logits, strict=True):
        start = sequence.length - len(rows)
        assert_same(rows, whole.logits[start : sequence.length], f"rows {start} .. {sequence.length - 1}")
