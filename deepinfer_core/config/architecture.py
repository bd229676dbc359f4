"""The shape of a model, as frozen records; made from a checkpoint's config by ``config.checkpoint``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

BLOCK_TOKENS = 128
"""Tokens per cache block (spec attention/04 section 3): one block holds 128 / ratio entries per layer."""

MAX_BACKTRACK_TOKENS = 6
"""Query rows of one sequence in a step at most, and how far a sequence may be rolled back (more for longer drafts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """YaRN frequency scaling (spec model/07 section 2)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionArchitecture:
    """Sizes common to the attention of every layer."""

    num_heads: int
    head_dim: int
    rotary_dim: int
    query_rank: int
    output_groups: int
    output_rank: int
    sliding_window: int
    rope_theta: float
    compressed_rope_theta: float
    rope_scaling: RopeScaling | None
    fp4_main_cache: bool = True
    max_backtrack_tokens: int = MAX_BACKTRACK_TOKENS

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def window_ring_rows(self) -> int:
        """Rows of a window ring: the window and what may be rolled back (spec attention/04 section 4)."""
        return self.sliding_window + self.max_backtrack_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerArchitecture:
    """The selection of compressed entries."""

    num_heads: int
    head_dim: int
    top_k: int
    candidate_source_layer: int | None
    candidate_blocks: int
    candidate_block_size: int

    @property
    def score_scale(self) -> float:
        """``head_dim^-1/2 * num_heads^-1/2``, the factor that some engines put into the head weights."""
        return self.head_dim**-0.5 * self.num_heads**-0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertArchitecture:
    """A mixture of experts."""

    num_experts: int
    experts_per_token: int
    inner_size: int
    num_shared: int
    routed_scaling: float
    swiglu_limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionArchitecture:
    """Residual streams and how they are mixed."""

    num_streams: int
    sinkhorn_iterations: int
    eps: float
    shifted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramArchitecture:
    """The n-gram memory."""

    layer_ids: tuple[int, ...]
    max_ngram: int
    heads_per_ngram: int
    head_dim: int
    prime_start: int
    pad_token_id: int
    compressed_vocab_size: int

    @property
    def hash_columns(self) -> int:
        return (self.max_ngram - 1) * self.heads_per_ngram

    @property
    def width(self) -> int:
        """Width of the concatenated rows of one token."""
        return self.hash_columns * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftArchitecture:
    """The draft module."""

    num_layers: int
    block_size: int
    noise_token_id: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    experts: ExpertArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionArchitecture:
    """The vision tower: known, so that its tensors are recognised; not run."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    downsample_ratio: int
    rope_theta: float
    max_image_tokens: int
    min_pixels: int
    max_width_height_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class ModelArchitecture:
    """Everything the graph and the loader need to know about a model.

    ``compress_ratios`` has one entry per backbone layer; the draft layers always have ratio 0.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int
    norm_eps: float
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    tokenizer_compatibility: str
    compress_ratios: tuple[int, ...]
    kv_source_layers: tuple[int, ...]
    index_source_layers: tuple[int, ...]
    index_key_source_layers: tuple[int, ...]
    attention: AttentionArchitecture
    indexer: IndexerArchitecture
    experts: ExpertArchitecture
    hyper_connection: HyperConnectionArchitecture
    engram: EngramArchitecture | None
    draft: DraftArchitecture | None
    vision: VisionArchitecture | None

    @cached_property
    def num_encoder_layers(self) -> int:
        """Index of the first layer of ratio 1: layers from here on read that layer's entries."""
        return self.compress_ratios.index(1)

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed entries ``layer`` attends to."""
        return _source(self.kv_source_layers, layer) if self.compress_ratios[layer] else None

    def index_source(self, layer: int) -> int | None:
        """The layer whose selection ``layer`` uses."""
        return _source(self.index_source_layers, layer) if self.compress_ratios[layer] else None

    def index_key_source(self, layer: int) -> int | None:
        """The layer whose index keys ``layer`` would score."""
        return _source(self.index_key_source_layers, layer) if self.compress_ratios[layer] else None

    def uses_candidates(self, layer: int) -> bool:
        """True when ``layer`` selects only within the candidate blocks of an earlier layer."""
        source = self.indexer.candidate_source_layer
        return source is not None and layer in self.index_source_layers and layer > source

    @property
    def ratios(self) -> tuple[int, ...]:
        """The compression ratios in use, ascending, without 0."""
        return tuple(sorted({r for r in self.compress_ratios if r}))

    @property
    def num_mixes(self) -> int:
        """Mixing numbers of one sub-layer: ``m (m + 2)``."""
        return self.hyper_connection.num_streams * (self.hyper_connection.num_streams + 2)


def _source(sources: Sequence[int], layer: int) -> int | None:
    """The nearest source at or before ``layer``."""
    return max((s for s in sources if s <= layer), default=None)
