"""Sizes of the caches: those that are published for the released model, and room for what any model may roll back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.checkpoint import read_architecture
from deepinfer_core.model.cache_layout import CacheLayout, Section, cache_layout

CONFIG = Path(__file__).parents[1] / "config" / "released_config.json"


@pytest.fixture
def released() -> ModelArchitecture:
    return read_architecture(json.loads(CONFIG.read_text()))[0]


def size(sections: tuple[Section, ...], kind: str) -> int:
    return sum(section.size_bytes for section in sections if section.kind == kind)


def overlaps(sections: tuple[Section, ...], total: int) -> bool:
    """Whether two sections share a byte or one leaves the block or slot."""
    spans = sorted((s.offset_bytes, s.offset_bytes + s.size_bytes) for s in sections)
    ends = [0, *(end for _, end in spans)]
    return any(start < end for (start, _), end in zip(spans, ends, strict=False)) or ends[-1] > total


def test_a_token_of_the_released_model_takes_890_bytes(released: ModelArchitecture) -> None:
    layout = cache_layout(released)

    assert layout.bytes_per_token == 890
    assert size(layout.block_sections, "main") / layout.block_tokens == 720
    assert size(layout.block_sections, "index") / layout.block_tokens == 170
    assert layout.bytes_per_token * 131072 == pytest.approx(116.7e6, rel=1e-3)


def test_a_token_with_fp8_entries_takes_1490_bytes(released: ModelArchitecture) -> None:
    attention = replace(released.attention, fp4_main_cache=False)

    layout = cache_layout(replace(released, attention=attention))

    assert size(layout.block_sections, "main") / layout.block_tokens == 1320
    assert layout.bytes_per_token == 1490


def test_a_window_row_takes_528_bytes(released: ModelArchitecture) -> None:
    windows = [s for s in cache_layout(released).slot_sections if "window" in s.kind]

    assert {s.size_bytes / s.rows for s in windows} == {528}
    assert {s.rows for s in windows} == {134}
    assert [s.layer for s in windows if s.kind == "window"] == list(range(40))
    assert [s.layer for s in windows if s.kind == "draft_window"] == [0, 1, 2]


def test_a_sequence_of_the_released_model_has_the_published_state(released: ModelArchitecture) -> None:
    slots = cache_layout(released).slot_sections

    encoder = [s for s in slots if s.kind == "window" and s.layer < released.num_encoder_layers]
    assert size(slots, "window") + size(slots, "draft_window") == 3_042_336
    assert size(slots, "compressor") == 86_016
    assert sum(s.size_bytes for s in slots) == 3_128_352
    assert sum(s.size_bytes for s in encoder) == 1_415_040


def test_only_pair_sources_keep_a_compressor_ring(released: ModelArchitecture) -> None:
    """A ratio-1 source has no state: every token makes its own entry."""
    rings = [s for s in cache_layout(released).slot_sections if s.kind == "compressor"]

    assert [(s.layer, s.rows) for s in rings] == [(2, 7), (8, 7), (14, 7)]


def test_source_layers_own_blocks_and_their_sections_do_not_overlap(released: ModelArchitecture) -> None:
    layout: CacheLayout = cache_layout(released)

    assert [(s.kind, s.layer, s.rows) for s in layout.block_sections] == [
        (kind, layer, 128 // released.compress_ratios[layer]) for layer in (2, 8, 14, 20) for kind in ("index", "main")
    ]
    assert not overlaps(layout.block_sections, layout.bytes_per_block)
    assert not overlaps(layout.slot_sections, layout.bytes_per_slot)
    assert all(s.offset_bytes % 32 == 0 for s in (*layout.block_sections, *layout.slot_sections))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (128, 1), (129, 2), (1000, 8)])
def test_blocks_hold_128_tokens_each(released: ModelArchitecture, tokens: int, blocks: int) -> None:
    assert cache_layout(released).blocks_for(tokens) == blocks


@pytest.mark.parametrize("block_size", [1, 5, 6, 8, 32])
def test_rings_hold_what_a_step_with_a_whole_draft_writes(block_size: int) -> None:
    """Window and draft block side by side; a verification step of the sampled token and every draft."""
    config = json.loads(CONFIG.read_text())
    config["text_config"]["dspark_block_size"] = block_size

    rows = {s.kind: s.rows for s in cache_layout(read_architecture(config)[0]).slot_sections}

    window, step_rows = config["text_config"]["sliding_window"], 1 + block_size
    assert rows["draft_window"] >= window + block_size
    assert rows["window"] >= window + step_rows - 1
    assert rows["compressor"] >= 2 + step_rows - 1
