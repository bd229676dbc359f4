"""A cached prefix without its windows: the last tokens of it are computed again, and what was cached stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches, differs
from tests.model.configs import CONFIGS, dummy_model
from tests.model.conftest import random_tokens
from tests.model.driver import POISON, Driver, FedSequence

HIT, WINDOW = BLOCK_TOKENS, 32
RESUME = HIT - WINDOW
"""Where a replay begins: a whole window before the end of the prefix (mini_b's is 32)."""
COMPACT = PromptTruncation(mode="compact", keep_tokens=38)
PREFIX = random_tokens(HIT, seed=21, below=700)
TEXT = PREFIX + random_tokens(52, seed=22, below=700)
SHARED = 5


def with_prefix(model: BoundModel, truncation: PromptTruncation = NO_TRUNCATION) -> Driver:
    """Caches in which one sequence has left its prefix in block 5; everything else is poisoned."""
    driver = Driver(model, num_slots=4, blocks_each=3, truncation=truncation)
    owner = FedSequence([*PREFIX, 9], 1, [SHARED, 6])
    driver.feed((owner, HIT), prefill=True)
    owner_slot, block = driver.caches.slot_pool[1].clone(), driver.caches.block_pool[SHARED].clone()
    driver.caches.slot_pool.fill_(POISON)
    driver.caches.block_pool.fill_(POISON)
    driver.caches.slot_pool[1], driver.caches.block_pool[SHARED] = owner_slot, block
    return driver


def hit(slot: int = 2, last_block: int = 8, text: list[int] | None = None) -> FedSequence:
    """A sequence that finds the prefix in block 5 and replays the end of it."""
    return FedSequence(
        list(text or TEXT), slot, [SHARED, last_block], length=RESUME, window_start=RESUME, store_from=HIT
    )


def replayed(driver: Driver, sequence: FedSequence, *chunks: int) -> Tensor:
    """Logits of the rows behind the prefix."""
    counts = chunks or (len(sequence.tokens) - sequence.length,)
    rows = [driver.feed((sequence, count), prefill=True)[0] for count in counts]
    return torch.cat(rows)[-(len(TEXT) - HIT) :]


@pytest.mark.parametrize("truncation", [NO_TRUNCATION, COMPACT], ids=["off", "compact"])
def test_a_replay_leaves_the_bytes_of_the_prefix(mini_b: BoundModel, truncation: PromptTruncation) -> None:
    """Its rows close entries of the prefix from other hidden rows, and store none of them."""
    driver, chunks = with_prefix(mini_b, truncation), (7, 26, 51)
    before, sequence = driver.caches.block_pool[SHARED].clone(), hit()

    logits = replayed(driver, sequence, *chunks)

    assert torch.equal(driver.caches.block_pool[SHARED], before)
    assert logits.isfinite().all(), "rings and blocks that nobody wrote were read"
    assert all(rows.isfinite().all() for rows in driver.cached(sequence).values())


def test_without_that_limit_the_prefix_is_overwritten(mini_b: BoundModel) -> None:
    """The test above can fail."""
    driver = with_prefix(mini_b)
    before, sequence = driver.caches.block_pool[SHARED].clone(), hit()
    sequence.store_from = 0

    replayed(driver, sequence)

    assert not torch.equal(driver.caches.block_pool[SHARED], before)


@pytest.mark.parametrize("truncation", [NO_TRUNCATION, COMPACT], ids=["off", "compact"])
def test_no_chunking_of_a_replay_shows(mini_b: BoundModel, truncation: PromptTruncation) -> None:
    driver = with_prefix(mini_b, truncation)
    whole = hit()
    (expected,) = driver.feed((whole, 84), prefill=True)

    for slot, chunks in ((3, (31, 1, 52)), (4, (1, 40, 43))):
        sequence = hit(slot, 7 + slot)
        rows = [driver.feed((sequence, count), prefill=True)[0] for count in chunks]

        assert_same(rows[-1], expected[-len(rows[-1]) :], f"{chunks}")
        assert_same_caches(driver.cached(sequence), driver.cached(whole), f"{chunks}")


def test_what_a_replay_reads_begins_where_it_does(mini_b: BoundModel) -> None:
    """A window from a given position on is a prompt that has nothing before it but entries."""
    driver = with_prefix(mini_b)
    (expected,) = driver.feed((hit(), 84), prefill=True)
    sequence = hit(3, 9)
    sequence.window_start = 0
    driver.caches.slot_pool[3] = 0

    (found,) = driver.feed((sequence, 84), prefill=True)

    assert differs(found, expected), "without the limit zeros before the replay are attended to"


def test_a_replay_is_close_to_the_prompt_without_cache_and_its_entries_are_equal(mini_b: BoundModel) -> None:
    """Approximate hidden rows, the prefix's entries of the owner, and the right n-grams across the border."""
    driver, cold = with_prefix(mini_b), Driver(mini_b, num_slots=1, blocks_each=2)
    sequence, fresh = hit(), cold.sequence(TEXT)

    found = replayed(driver, sequence)

    expected = cold.feed((fresh, len(TEXT)), prefill=True)[0][HIT:]
    near, far = (rows.log_softmax(-1) for rows in (found, expected))
    divergence = (far.exp() * (far - near)).sum(-1).mean()
    assert 1e-9 < divergence < 0.1
    for name, rows in cold.cached(fresh).items():
        if name.startswith(("main", "index")):
            count = len(rows) * HIT // len(TEXT)
            assert_same(driver.cached(sequence)[name][:count], rows[:count], name)


@pytest.mark.parametrize("chunks", [(52,), (15, 37)], ids=str)
def test_restored_windows_make_a_hit_equal_to_no_cache(mini_b: BoundModel, chunks: tuple[int, ...]) -> None:
    """The encoder's windows are a snapshot, the decoder's hold nothing: the kept tokens are all computed anew."""
    cold = Driver(mini_b, num_slots=1, blocks_each=2, truncation=COMPACT)
    fresh = cold.sequence(TEXT)
    (expected,) = cold.feed((fresh, len(TEXT)), prefill=True)
    driver = with_prefix(mini_b, COMPACT)
    sequence = FedSequence(list(TEXT), 2, [SHARED, 8], length=HIT, store_from=HIT)
    for layer in range(mini_b.architecture.num_encoder_layers):
        ring = driver.caches.window[layer].storage
        ring[2] = ring[1]
    assert len(TEXT) - COMPACT.keep_tokens >= HIT, "kept tokens before the resumed one would lack their decoder rows"

    rows = [driver.feed((sequence, count), prefill=True)[0] for count in chunks]

    assert_same(rows[-1], expected[-len(rows[-1]) :], "rows")
    assert_same_caches(driver.cached(sequence), cold.cached(fresh), "caches")


def test_a_short_prefix_is_computed_anew_and_equals_no_cache(mini_b: BoundModel) -> None:
    """A replay from 0 stores nothing that is shared and is exact."""
    driver, cold = with_prefix(mini_b), Driver(mini_b, num_slots=1, blocks_each=2)
    before, fresh = driver.caches.block_pool[SHARED].clone(), cold.sequence(TEXT)
    sequence = replace(hit(), length=0, window_start=0)

    (found,) = driver.feed((sequence, len(TEXT)), prefill=True)

    assert_same(found, cold.feed((fresh, len(TEXT)), prefill=True)[0], "rows")
    assert_same_caches(driver.cached(sequence), cold.cached(fresh), "caches")
    assert torch.equal(driver.caches.block_pool[SHARED], before)


def test_whose_prefix_it_was_makes_no_difference(mini_b: BoundModel) -> None:
    """Another slot, another last block, and a neighbour that replays in the same steps."""
    driver = with_prefix(mini_b)
    alone = replayed(driver, hit())
    sequence, neighbour = hit(1, 6), hit(3, 9, PREFIX + TEXT[:60])

    first = driver.feed((neighbour, 50), (sequence, 40), prefill=True)[1]
    second = driver.feed((sequence, 44), (neighbour, 42), prefill=True)[0]

    assert_same(torch.cat((first, second))[-len(alone) :], alone, "rows")


def test_decode_goes_on_behind_a_replay(mini_b: BoundModel) -> None:
    """Decode rows see full windows of replayed keys, as a longer prompt chunk would."""
    driver = with_prefix(mini_b)
    in_prompt, in_decode = hit(3, 9), hit()
    driver.feed((in_decode, 60), (in_prompt, 60), prefill=True)
    driver.poison_dead(in_decode, in_prompt)

    expected = driver.feed((in_prompt, 12), prefill=True)[0]
    found = torch.cat([driver.feed((in_decode, count))[0] for count in (1, 6, 5)])

    assert_same(found, expected, "decode rows")
    assert_same_caches(driver.cached(in_decode), driver.cached(in_prompt), "caches")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_replays_in_any_chunks(name: str, tmp_path: Path) -> None:
    """Whatever the topology: finite over poison, the same in chunks, and the shared bytes untouched."""
    model = dummy_model(tmp_path, CONFIGS[name])
    text = random_tokens(HIT + 20, seed=4)
    window = model.architecture.attention.sliding_window
    start = (HIT - window) // 2 * 2
    driver = Driver(model, num_slots=3, blocks_each=2)
    driver.feed((FedSequence(text[:HIT], 1, [SHARED]), HIT), prefill=True)
    block = driver.caches.block_pool[SHARED].clone()
    driver.caches.slot_pool.fill_(POISON)
    sequences = [
        FedSequence(text, slot, [SHARED, slot], length=start, window_start=start, store_from=HIT) for slot in (1, 2)
    ]

    (expected,) = driver.feed((sequences[0], len(text) - start), prefill=True)
    parts = [driver.feed((sequences[1], count), prefill=True)[0] for count in (3, HIT - start - 2, 19)]

    assert expected.isfinite().all()
    assert_same(torch.cat(parts), expected, name)
    assert_same_caches(driver.cached(sequences[1]), driver.cached(sequences[0]), name)
    assert torch.equal(driver.caches.block_pool[SHARED], block)
