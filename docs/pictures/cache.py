"""The picture of the caches, drawn from the layout of the released model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deepinfer_core.config.checkpoint import parse_config
from deepinfer_core.errors import InternalError
from deepinfer_core.model.cache_layout import CacheLayout, Section, cache_layout
from pictures.svg import PALE, Sheet

RELEASED_CONFIG = Path(__file__).parents[2] / "tests/unit/config/released_config.json"
_COLORS = {
    "main": "#93c5fd",
    "index": "#fcd34d",
    "window": "#86efac",
    "draft_window": "#c4b5fd",
    "compressor": "#fca5a5",
}
_WORDS = {
    "main": "compressed entries",
    "index": "index keys",
    "window": "window rings",
    "draft_window": "draft window rings",
    "compressor": "compressor rings",
}
_LEFT, _WIDTH = 30, 900


def released_layout() -> CacheLayout:
    """The layout of the released model's caches."""
    architecture = parse_config(json.loads(RELEASED_CONFIG.read_text(encoding="utf-8"))).architecture
    if architecture is None:
        raise InternalError(f"{RELEASED_CONFIG.name} is not a valid config")
    return cache_layout(architecture)


def cache_picture() -> str:
    """A block and a state slot as bars whose lengths are bytes."""
    layout = released_layout()
    sheet = Sheet(960, 330, "Sections of a cache block and of a state slot of the released model, to scale")
    per_token = f"{layout.bytes_per_token:g} bytes for each token"
    title = f"One block: {layout.block_tokens} tokens of all layers, {layout.bytes_per_block:,} bytes ({per_token})"
    _bar(sheet, 20, title, layout.block_sections, layout.bytes_per_block)
    title = f"One state slot: what one sequence keeps besides, {layout.bytes_per_slot:,} bytes whatever its length"
    _bar(sheet, 180, title, layout.slot_sections, layout.bytes_per_slot)
    return sheet.svg()


def _bar(sheet: Sheet, top: int, title: str, sections: Sequence[Section], total_bytes: int) -> None:
    """Title, sections to scale with layer numbers where they fit, and a legend with sums."""
    sheet.text(_LEFT, top + 14, title, size=13, weight="bold")
    scale = _WIDTH / total_bytes
    for section in sections:
        x, width = _LEFT + section.offset_bytes * scale, section.size_bytes * scale
        sheet.bar(x, top + 26, width, 50, _COLORS[section.kind])
        if width >= 12:
            sheet.text(x + width / 2, top + 56, str(section.layer), size=10, anchor="middle")
    sheet.text(_LEFT, top + 92, "numbers are layers; draft layers count from 0 again", size=10, color=PALE)
    x = _LEFT
    for kind, word in _WORDS.items():
        found = [section for section in sections if section.kind == kind]
        if found:
            sheet.bar(x, top + 104, 12, 12, _COLORS[kind])
            legend = f"{word}: {len(found)} layers, {sum(section.size_bytes for section in found):,} bytes"
            sheet.text(x + 18, top + 114, legend, size=11)
            x += 310
