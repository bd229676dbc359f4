"""Decoder layers on the end of a prompt only: what stays exact, what is approximate, and that no chunking shows."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import BOUND, assert_same, assert_same_caches, differs
from tests.model.configs import CONFIGS, WINDOW, dummy_model
from tests.model.conftest import IMAGES, MINI_B, random_tokens
from tests.model.driver import POISON, Driver, FedSequence
from tests.model.random_configs import random_config

KEEP = 38
"""The least for mini_b: a window of 32, and 6 tokens that may be rolled back."""
EXACT = 3 * 31 + 1
"""So many tokens the last one depends on through the three decoder layers of mini_b."""
TEXT = random_tokens(150, seed=11, below=700)
NEVER = frozenset({"main", "index", "compressor"})
"""Kinds of cached rows that truncation never changes, whatever the layer."""

CHUNKS = {
    "whole": (150,),
    "two_before_and_two_behind": (30, 41, 50, 29),
    "up_to_the_kept_tokens": (112, 1, 37),
    "short_last_chunk": (149, 1),
}
Known = tuple[list[Tensor], dict[str, Tensor]]
"""Returned rows of each chunk, and the live rows of every cache afterwards."""
Compute = Callable[[PromptTruncation, tuple[int, ...]], Known]


def truncated(mode: str, keep: int = KEEP) -> PromptTruncation:
    return PromptTruncation(mode=mode, keep_tokens=keep)


def feed(driver: Driver, sequence: FedSequence, chunks: tuple[int, ...]) -> list[Tensor]:
    """The returned rows of each chunk."""
    return [driver.feed((sequence, count), prefill=True)[0] for count in chunks]


@pytest.fixture(scope="module")
def known(mini_b: BoundModel) -> Compute:
    """What the text gives with a setting, cut in a way; computed once."""

    @cache
    def compute(truncation: PromptTruncation, chunks: tuple[int, ...]) -> Known:
        driver, sequence, rows = fed(mini_b, truncation, chunks)
        return rows, driver.cached(sequence)

    return compute


def fed(
    model: BoundModel, truncation: PromptTruncation, chunks: tuple[int, ...], text: list[int] | None = None
) -> tuple[Driver, FedSequence, list[Tensor]]:
    driver = Driver(model, num_slots=2, blocks_each=2, truncation=truncation)
    sequence = driver.sequence(TEXT if text is None else text, IMAGES if text is None else frozenset())
    return driver, sequence, feed(driver, sequence, chunks)


@pytest.mark.parametrize("name", CHUNKS)
def test_compact_equals_mask_however_the_prompt_is_cut(known: Compute, name: str) -> None:
    (expected, masked), (found, compact) = (known(truncated(mode), CHUNKS[name]) for mode in ("mask", "compact"))

    for of_mask, rows in zip(expected, found, strict=True):
        assert_same(rows, of_mask[-len(rows) :], f"retained rows, {name}")
    assert sum(map(len, found)) < sum(map(len, expected)) == len(TEXT)
    assert_same_caches(compact, masked, name)


@pytest.mark.parametrize("name", [name for name in CHUNKS if name != "whole"])
def test_no_chunking_shows(known: Compute, name: str) -> None:
    (expected,), whole = known(truncated("compact"), CHUNKS["whole"])
    parts, cached = known(truncated("compact"), CHUNKS[name])

    assert len(expected) == KEEP
    kept, end = [], 0
    for rows, count in zip(parts, CHUNKS[name], strict=True):
        end += count
        assert len(rows) == max(1, min(count, end - (len(TEXT) - KEEP)))
        kept += [rows] if end > len(TEXT) - KEEP else []
    assert_same(torch.cat(kept), expected, name)
    assert_same_caches(cached, whole, name)


def test_drafts_and_tokens_behind_the_prompt_are_those_of_mask(mini_b: BoundModel) -> None:
    drivers = [fed(mini_b, truncated(mode), CHUNKS["whole"])[:2] for mode in ("mask", "compact")]

    drafts = [driver.draft((sequence, 17)).logits for driver, sequence in drivers]
    for driver, sequence in drivers:
        sequence.tokens = [*TEXT, 5, 9, 300, 41]
        driver.poison_dead(sequence)
    rows = [driver.feed((sequence, 4))[0] for driver, sequence in drivers]

    assert_same(drafts[1], drafts[0], "drafts")
    assert_same(rows[1], rows[0], "rows behind the prompt")
    assert_same_caches(*(driver.cached(sequence) for driver, sequence in drivers[::-1]), "behind the prompt")


def test_random_chunks_beside_a_neighbour(mini_b: BoundModel, known: Compute) -> None:
    """Two prompts of different length in one step, one of them with all of its rows."""
    chance, other = random.Random(3), TEXT[20:110]
    (expected,), _ = known(truncated("compact"), CHUNKS["whole"])
    _, _, (untruncated,) = fed(mini_b, NO_TRUNCATION, (90,), other)
    driver = Driver(mini_b, num_slots=2, blocks_each=2, truncation=truncated("compact"))
    long, whole = driver.sequence(TEXT, IMAGES), driver.sequence(other)
    whole.all_rows = True

    rows: list[Tensor] = []
    while long.length < 150 or whole.length < 90:
        parts = [(s, min(chance.randint(5, 60), len(s.tokens) - s.length)) for s in (whole, long)]
        parts = [(s, count) for s, count in parts if count]
        for (sequence, count), logits in zip(parts, driver.feed(*parts, prefill=True), strict=True):
            if sequence is whole:
                assert_same(logits, untruncated[whole.length - count : whole.length], "the neighbour's every row")
            elif long.length > 150 - KEEP:
                rows.append(logits)

    assert_same(torch.cat(rows), expected, "the truncated prompt")


@pytest.mark.parametrize("mode", ["mask", "compact"])
@pytest.mark.parametrize("name", ["whole", "two_before_and_two_behind"])
def test_what_is_cached_for_good_is_exact(mini_b: BoundModel, known: Compute, mode: str, name: str) -> None:
    """Bit for bit: the encoder's caches, and entries and index keys of the first decoder layer."""
    _, expected = known(NO_TRUNCATION, CHUNKS[name])
    _, found = known(truncated(mode), CHUNKS[name])

    assert exact_names(mini_b, expected) > {"main.4", "index.4", "window.3"}
    for row in exact_names(mini_b, expected):
        assert torch.equal(found[row], expected[row]), row
    assert differs(found["window.6"], expected["window.6"]), "the decoder's windows are approximate"


def exact_names(model: BoundModel, cached: dict[str, Tensor]) -> set[str]:
    """Cached rows that truncation does not change."""
    cut = model.architecture.num_encoder_layers
    places = {name: name.split(".") for name in cached}
    return {n for n, (kind, layer) in places.items() if kind in NEVER or (kind == "window" and int(layer) < cut)}


@pytest.mark.parametrize("mode", ["mask", "compact"])
@pytest.mark.parametrize("chunks", [(150,), (70, 80)], ids=str)
def test_keeping_the_whole_prompt_is_off(mini_b: BoundModel, mode: str, chunks: tuple[int, ...]) -> None:
    """The same bits in everything, from the first number of kept tokens that reaches the start."""
    off, _, expected = fed(mini_b, NO_TRUNCATION, chunks)

    driver, _, found = fed(mini_b, truncated(mode, len(TEXT)), chunks)

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(driver.caches.slot_pool, off.caches.slot_pool)
    assert torch.equal(driver.caches.block_pool, off.caches.block_pool)


def test_the_last_token_is_exact_once_its_whole_past_is_kept(known: Compute) -> None:
    """Each decoder layer widens what a token depends on by a window less one (spec attention/05 A.4)."""
    (expected,), _ = known(NO_TRUNCATION, CHUNKS["whole"])

    last = {keep: known(truncated("compact", keep), (150,))[0][0][-1] for keep in (KEEP, EXACT - 4, EXACT)}

    assert_same(last[EXACT], expected[-1], f"{EXACT} tokens kept")
    # One row less reaches the last token through three roundings of cached keys, which may hide it; four do not.
    assert differs(last[EXACT - 4], expected[-1])
    assert differs(last[KEEP], expected[-1])


@pytest.mark.parametrize("back", [0, 6])
def test_no_row_reads_a_window_key_before_the_kept_tokens(mini_b: BoundModel, back: int) -> None:
    """NaN in the decoder's ring rows that hold no kept token changes nothing, nor after ``back`` tokens are undone."""
    chunks = (60, 60, 30)
    other, clean, expected = fed(mini_b, truncated("compact"), chunks)
    driver = Driver(mini_b, num_slots=2, blocks_each=2, truncation=truncated("compact"))
    sequence = driver.sequence(TEXT, IMAGES)
    found = []
    for count in chunks:
        poison_below(driver, sequence, len(TEXT) - KEEP)
        found += driver.feed((sequence, count), prefill=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    poison_below(driver, sequence, len(TEXT) - KEEP)
    clean.length = sequence.length = len(TEXT) - back
    clean.tokens = sequence.tokens = [*TEXT[: len(TEXT) - back], 3, 600, 12]
    assert_same(driver.feed((sequence, 3))[0], other.feed((clean, 3))[0], f"decode after {back} tokens were undone")


def poison_below(driver: Driver, sequence: FedSequence, floor: int) -> None:
    """Overwrite the rows of the decoder's and the draft's rings that hold no position from ``floor`` on."""
    rings = [ring for n, ring in driver.caches.window.items() if n >= driver.model.architecture.num_encoder_layers]
    for ring in (*rings, *driver.caches.draft_window.values()):
        held = {p % ring.rows_per_block for p in range(max(floor, 0), sequence.length)}
        records = ring.storage[sequence.slot].unflatten(0, (ring.rows_per_block, -1))
        records[[row for row in range(ring.rows_per_block) if row not in held]] = POISON


def test_a_chunk_before_the_kept_tokens_leaves_the_decoder_alone(mini_b: BoundModel) -> None:
    """Its one row attends to entries only, and no ring row of the decoder is written."""
    driver = Driver(mini_b, num_slots=2, blocks_each=2, truncation=truncated("compact"))
    sequence = driver.sequence(TEXT, IMAGES)
    poison_below(driver, sequence, 0)
    before = {n: ring.storage[sequence.slot].clone() for n, ring in driver.caches.window.items()}

    (rows,) = driver.feed((sequence, 112), prefill=True)

    assert len(rows) == 1
    assert rows.isfinite().all()
    changed = {n for n, ring in driver.caches.window.items() if not torch.equal(ring.storage[sequence.slot], before[n])}
    assert changed == {0, 1, 2, 3}


@pytest.mark.parametrize("numerics", ["released", "bf16"])
def test_compact_equals_mask_bit_for_bit(numerics: str) -> None:
    """Where products do not depend on the rows beside, the same bits: logits, and every byte of every cache."""
    model = open_model(str(MINI_B), accelerator="cpu", numerics=numerics, max_model_len=256).model
    if model.device.facts.get("row_invariant_products") != "yes":
        pytest.skip("this machine's products depend on the rows beside")
    for name in ("whole", "two_before_and_two_behind"):
        (masked, _, expected), (compact, _, found) = (
            fed(model, truncated(mode), CHUNKS[name]) for mode in ("mask", "compact")
        )

        assert all(torch.equal(rows, of_mask[-len(rows) :]) for rows, of_mask in zip(found, expected, strict=True))
        assert torch.equal(compact.caches.block_pool, masked.caches.block_pool)
        assert torch.equal(compact.caches.slot_pool, masked.caches.slot_pool)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config(name: str, tmp_path: Path) -> None:
    check(dummy_model(tmp_path, CONFIGS[name]), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_configs_too(seed: int, tmp_path: Path) -> None:
    check(dummy_model(tmp_path, random_config(seed)), seed)


def check(model: BoundModel, seed: int) -> None:
    """Mask at once, compact in random chunks over poisoned rings; and what is exact against no truncation."""
    text, chance = random_tokens(4 * WINDOW, seed=7), random.Random(seed)
    keep = model.architecture.attention.window_ring_rows + chance.randint(0, 5)
    off, first, _ = fed(model, NO_TRUNCATION, (len(text),), text)
    masked, second, (expected,) = fed(model, truncated("mask", keep), (len(text),), text)
    driver = Driver(model, truncation=truncated("compact", keep))
    sequence = driver.sequence(text)

    while left := len(text) - sequence.length:
        poison_below(driver, sequence, len(text) - keep)
        (rows,) = driver.feed((sequence, min(chance.randint(1, 20), left)), prefill=True)
        end = sequence.length
        if end > len(text) - keep:
            assert_same(rows, expected[end - len(rows) : end], f"rows before {end}")

    cached, exact = driver.cached(sequence), off.cached(first)
    assert_same_caches(cached, masked.cached(second), "compact and mask")
    for name in exact_names(model, exact):
        assert_same(cached[name], exact[name], f"{name}, compact and off (bound {BOUND})")
