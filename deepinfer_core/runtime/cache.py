"""Allocate the pools of a layout, and show the graph each layer's part of them."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.config.numerics import Numerics
from deepinfer_core.model.cache_layout import CacheLayout, Section
from deepinfer_core.model.step_inputs import KVCaches
from deepinfer_core.tensor import Cache


def allocate_caches(
    layout: CacheLayout, num_blocks: int, num_slots: int, device: torch.device, numerics: Numerics
) -> KVCaches:
    """Zero-filled pools with views by layer.

    Args:
        layout: Sections and sizes.
        num_blocks: Cache blocks, the dummy block 0 included.
        num_slots: State slots, the dummy slot 0 included.
        device: Where the pools live.
        numerics: Decides the element type of the compressor rings.
    """
    blocks = torch.zeros(num_blocks, layout.bytes_per_block, dtype=torch.uint8, device=device)
    slots = torch.zeros(num_slots, layout.bytes_per_slot, dtype=torch.uint8, device=device)
    wide = torch.float64 if numerics.activation == "f64" else torch.float32
    views = {
        kind: {s.layer: _cache(pool, s) for s in sections if s.kind == kind}
        for pool, sections, kind in (
            (blocks, layout.block_sections, "main"),
            (blocks, layout.block_sections, "index"),
            (slots, layout.slot_sections, "window"),
            (slots, layout.slot_sections, "draft_window"),
        )
    }
    compressor = {s.layer: _compressor(slots, s, wide) for s in layout.slot_sections if s.kind == "compressor"}
    return KVCaches(block_pool=blocks, slot_pool=slots, compressor=compressor, **views)


def _cache(pool: Tensor, section: Section) -> Cache:
    """Index keys lie in two sections (all values, then all scales), everything else row by row."""
    return Cache(_bytes(pool, section), section.format, section.width, section.rows, sectioned=section.kind == "index")


def _compressor(pool: Tensor, section: Section, wide: torch.dtype) -> Tensor:
    return _bytes(pool, section).view(wide).unflatten(1, (section.rows, 2, section.width))


def _bytes(pool: Tensor, section: Section) -> Tensor:
    return pool[:, section.offset_bytes : section.offset_bytes + section.size_bytes]
