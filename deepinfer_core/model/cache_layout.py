"""What each layer must keep: sections of a cache block and of a state slot, in bytes.

A *block* holds 128 tokens of every layer that produces compressed entries; a *state slot* holds what one
sequence needs besides: the window ring of every layer, the draft's rings and the compressor rings
(spec attention/04). Everything but the cache ops sees only the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.config.architecture import BLOCK_TOKENS, MAX_BACKTRACK_TOKENS, ModelArchitecture
from deepinfer_core.dtypes import FORMATS

_ALIGNMENT_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One layer's part of a block or of a state slot.

    Attributes:
        kind: ``main`` or ``index`` (blocks); ``window``, ``draft_window`` or ``compressor`` (slots).
        layer: Layer number; for ``draft_window`` the number of the draft layer.
        format: Quantised format, or "" for the compressor ring (wide numbers).
        width: Channels of one row.
        rows: Rows per block, or ring length.
        offset_bytes: Where the section begins.
        size_bytes: Its length.
    """

    kind: str
    layer: int
    format: str
    width: int
    rows: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Sections of one block and of one state slot, and their padded sizes."""

    block_sections: tuple[Section, ...]
    slot_sections: tuple[Section, ...]
    bytes_per_block: int
    bytes_per_slot: int
    block_tokens: int = BLOCK_TOKENS

    @property
    def bytes_per_token(self) -> float:
        """Unbounded cache per token: compressed entries and index keys, without padding."""
        return sum(s.size_bytes for s in self.block_sections) / self.block_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_tokens)


def cache_layout(architecture: ModelArchitecture, *, wide_bytes: int = 4) -> CacheLayout:
    """The layout of a model's caches.

    Args:
        architecture: Which layers keep what.
        wide_bytes: Bytes of a number in the compressor ring (8 in float64 arithmetic).
    """
    blocks, block_bytes = _place(_block_rows(architecture), wide_bytes)
    slots, slot_bytes = _place(_slot_rows(architecture), wide_bytes)
    return CacheLayout(
        block_sections=blocks, slot_sections=slots, bytes_per_block=block_bytes, bytes_per_slot=slot_bytes
    )


def compressor_ring_rows(ratio: int, max_backtrack_tokens: int = MAX_BACKTRACK_TOKENS) -> int:
    """Rows of a compressor ring: one open group and what may be rolled back (spec attention/02 section 2)."""
    return ratio + max_backtrack_tokens - 1


_Rows = tuple[str, int, str, int, int]


def _block_rows(architecture: ModelArchitecture) -> list[_Rows]:
    main = "fp4_e4m3" if architecture.attention.fp4_main_cache else "mxfp8"
    rows: list[_Rows] = []
    for layer in architecture.index_key_source_layers:
        entries = BLOCK_TOKENS // architecture.compress_ratios[layer]
        rows.append(("index", layer, "mxfp4", architecture.indexer.head_dim, entries))
        if layer in architecture.kv_source_layers:
            rows.append(("main", layer, main, architecture.attention.head_dim, entries))
    return rows


def _slot_rows(architecture: ModelArchitecture) -> list[_Rows]:
    attention = architecture.attention
    ring = attention.window_ring_rows
    rows: list[_Rows] = [
        ("window", layer, "mxfp8", attention.head_dim, ring) for layer in range(architecture.num_layers)
    ]
    if architecture.draft is not None:
        rows += [
            ("draft_window", layer, "mxfp8", attention.head_dim, ring) for layer in range(architecture.draft.num_layers)
        ]
    for layer in architecture.kv_source_layers:
        ratio = architecture.compress_ratios[layer]
        if ratio > 1:
            rows.append(
                (
                    "compressor",
                    layer,
                    "",
                    attention.head_dim,
                    compressor_ring_rows(ratio, attention.max_backtrack_tokens),
                )
            )
    return rows


def _place(rows: list[_Rows], wide_bytes: int) -> tuple[tuple[Section, ...], int]:
    """Sections one after the other, each aligned to 32 bytes, and the padded total."""
    sections: list[Section] = []
    offset = 0
    for kind, layer, format, width, count in rows:
        size = count * (FORMATS[format].record_bytes(width) if format else 2 * width * wide_bytes)
        sections.append(
            Section(
                kind=kind, layer=layer, format=format, width=width, rows=count, offset_bytes=offset, size_bytes=size
            )
        )
        offset += -(-size // 32) * 32
    return tuple(sections), max(-(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES, _ALIGNMENT_BYTES)
