"""Arithmetic of a prompt, counted from a model's shape: whole, truncated, or behind a cached prefix.

Two operations for each multiply-add of a linear map, of attention and of index scores; norms, rotations, softmax,
rounding, and what is done to streams beyond projecting them are left out (the conventions of spec attention/09), and so
are index keys of rows that close no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from deepinfer_core.config.architecture import ExpertArchitecture, ModelArchitecture
from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlops:
    """Operations of one layer, or of several together.

    Attributes:
        projections: Queries, window keys and output of attention, and queries of the indexer.
        attention: Queries with the window's keys and the selected entries.
        index_scores: Index queries with the keys that they score.
        entries: Producers of compressed entries and of index keys.
        experts: Router, routed experts and shared experts.
        engram: The n-gram memory's map.
        streams: Projections that mix the residual streams.
    """

    projections: int = 0
    attention: int = 0
    index_scores: int = 0
    entries: int = 0
    experts: int = 0
    engram: int = 0
    streams: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: LayerFlops) -> LayerFlops:
        return LayerFlops(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFlops:
    """Operations of one prompt.

    Attributes:
        encoder: Layers before the first of ratio 1.
        decoder: The others.
        draft: Context keys of the draft module.
        logits: The vocabulary's logits of the last token.
    """

    encoder: LayerFlops
    decoder: LayerFlops
    draft: int
    logits: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.encoder.total + self.decoder.total + self.draft + self.logits


@dataclass(frozen=True, slots=True)
class _Rows:
    """Positions ``first .. last - 1``; windows reach back to ``floor``."""

    first: int
    last: int
    floor: int

    @property
    def count(self) -> int:
        return self.last - self.first


def prompt_flops(
    architecture: ModelArchitecture,
    num_tokens: int,
    *,
    resume: int = 0,
    window_start: int | None = None,
    truncation: PromptTruncation = NO_TRUNCATION,
) -> PromptFlops:
    """Operations of a prompt that is fed in one chunk (each further chunk of a truncated prompt adds a decoder row).

    Args:
        architecture: The model.
        num_tokens: Tokens of the whole prompt.
        resume: First token that is computed: everything before is cached.
        window_start: First position that has window keys; None is ``resume``, a cached prefix without its windows.
        truncation: How much of the prompt the decoder layers see.
    """
    floor = resume if window_start is None else window_start
    kept = truncation.first_kept(num_tokens)
    every = _Rows(resume, num_tokens, floor)
    # The mask shortens windows, not the work: rows outside of it are still computed.
    first = kept if truncation.mode == "compact" else resume
    some = _Rows(max(resume, first), num_tokens, max(floor, kept))
    cut = architecture.num_encoder_layers
    draft = architecture.draft
    draft_rows = some if draft is not None and min(draft.target_layer_ids) >= cut else every
    return PromptFlops(
        encoder=sum((_layer(architecture, n, every, every) for n in range(cut)), LayerFlops()),
        decoder=sum((_layer(architecture, n, some, every) for n in range(cut, architecture.num_layers)), LayerFlops()),
        draft=draft_rows.count * _draft_context(architecture),
        logits=2 * architecture.hidden_size * architecture.vocab_size,
    )


def _layer(architecture: ModelArchitecture, layer: int, rows: _Rows, stored: _Rows) -> LayerFlops:
    """One layer on ``rows``, which makes entries of all ``stored`` rows."""
    hidden, shape, index = architecture.hidden_size, architecture.attention, architecture.indexer
    ratio, selects = architecture.compress_ratios[layer], layer in architecture.index_source_layers
    pairs = _sum_of_windows(rows, shape.sliding_window)
    if ratio:
        pairs += _over(rows, ratio, lambda m: _capped(m, index.top_k))
    query = shape.query_rank * index.num_heads * index.head_dim + hidden * index.num_heads if selects else 0
    scored = _over(rows, ratio, _scored(architecture, layer)) if selects else 0
    streams = architecture.hyper_connection.num_streams
    engram = architecture.engram
    has_memory = engram is not None and layer in engram.layer_ids
    return LayerFlops(
        projections=2 * rows.count * (_attention_weights(architecture) + query),
        attention=4 * shape.num_heads * shape.head_dim * pairs,
        index_scores=2 * index.num_heads * index.head_dim * scored,
        entries=2 * _entry_products(architecture, layer, stored),
        experts=2 * rows.count * _expert_weights(architecture.experts, hidden),
        engram=2 * rows.count * hidden * (streams + 1) * engram.width if engram is not None and has_memory else 0,
        streams=2 * rows.count * 2 * architecture.num_mixes * streams * hidden,
    )


def _attention_weights(architecture: ModelArchitecture) -> int:
    """Multiply-adds of one row in the maps that every layer's attention has."""
    hidden, shape = architecture.hidden_size, architecture.attention
    heads = shape.num_heads * shape.head_dim
    inputs = hidden * (shape.query_rank + shape.head_dim) + shape.query_rank * heads
    return inputs + heads * shape.output_rank + shape.output_groups * shape.output_rank * hidden


def _expert_weights(experts: ExpertArchitecture, hidden: int) -> int:
    active = experts.experts_per_token + experts.num_shared
    return hidden * experts.num_experts + 3 * active * hidden * experts.inner_size


def _entry_products(architecture: ModelArchitecture, layer: int, rows: _Rows) -> int:
    """Multiply-adds of the maps to entries, and from entries to index keys, where the layer owns them."""
    ratio, width = architecture.compress_ratios[layer], architecture.attention.head_dim
    products = 0
    if layer in architecture.kv_source_layers:
        products += rows.count * architecture.hidden_size * width * (1 if ratio == 1 else 2)
    if layer in architecture.index_key_source_layers:
        products += (rows.last // ratio - rows.first // ratio) * width * architecture.indexer.head_dim
    return products


def _draft_context(architecture: ModelArchitecture) -> int:
    """Operations of one row in the map of the features and in each draft layer's keys."""
    draft, hidden = architecture.draft, architecture.hidden_size
    if draft is None:
        return 0
    inputs = len(draft.target_layer_ids) * hidden
    return 2 * (inputs * hidden + draft.num_layers * hidden * architecture.attention.head_dim)


def _scored(architecture: ModelArchitecture, layer: int) -> Callable[[int], int]:
    """Sum over 1 .. m visible entries of how many of them the layer scores."""
    index = architecture.indexer
    if not architecture.uses_candidates(layer):
        return lambda m: m * (m + 1) // 2
    size, most = index.candidate_block_size, index.candidate_blocks

    def candidates(m: int) -> int:
        blocks, rest = divmod(min(m, size * most), size)
        return size * (size * blocks * (blocks + 1) // 2 + rest * (blocks + 1) + max(m - size * most, 0) * most)

    return candidates


def _capped(m: int, most: int) -> int:
    """Sum of ``min(v, most)`` over ``v = 1 .. m``."""
    below = min(m, most)
    return below * (below + 1) // 2 + (m - below) * most


def _over(rows: _Rows, ratio: int, summed: Callable[[int], int]) -> int:
    """Sum over rows of a function of their visible entries ``(p + 1) // ratio``, given its sums over 1 .. m."""

    def before(end: int) -> int:
        entries, rest = divmod(end, ratio)
        if not entries:
            return 0
        earlier = summed(entries - 1)
        return ratio * earlier + (rest + 1) * (summed(entries) - earlier)

    return before(rows.last) - before(rows.first)


def _sum_of_windows(rows: _Rows, window: int) -> int:
    """Keys in the windows of all rows; rows before the floor have none."""
    return _capped(max(rows.last - rows.floor, 0), window) - _capped(max(rows.first - rows.floor, 0), window)
