"""What the tensors of one step take, from the architecture alone: those that ops return and the graph still needs.

The phases of a layer follow each other, so a step takes what all phases share and the most of any phase. Every line
names tensors of ``deepinfer_core/model/blocks``; ``tests/unit/runtime/test_workspace.py`` compares the sum with what a
step holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.config.architecture import BLOCK_TOKENS, ModelArchitecture
from deepinfer_core.config.numerics import Numerics
from deepinfer_core.dtypes import FORMATS

_INT = 4
_STEP_COLUMNS = 6
"""Inputs and stores of each row: ids, compressed ids, positions, sequence, where its window key goes, and the last."""
_SAMPLED_NUMBERS = 6
"""Rows of the vocabulary that sampling keeps at once: logits, restricted ones, counts in output and prompt, result."""
_SAMPLED_ROWS = 256
"""Rows that are sampled at once (``engine.step_sampler``)."""
_SCORED_ROWS = 256
"""Rows of a prompt whose log-probabilities are computed at once (``engine.step_runner``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """The largest step of one kind.

    Attributes:
        rows: Rows, padding included.
        sequences: Sequences.
        max_context: Tokens of the longest one.
        context_tokens: Tokens of all of them together whose entries are gathered; 0 where they are read in place.
    """

    rows: int
    sequences: int
    max_context: int
    context_tokens: int = 0

    @property
    def prefill(self) -> bool:
        return self.context_tokens > 0


def activation_bytes(architecture: ModelArchitecture, numerics: Numerics, size: StepSize) -> int:
    """Bytes that the tensors of a step take at most, caches and what ops take for themselves not counted."""
    widths = _Widths(architecture, numerics)
    phases = widths.attention(), widths.feed_forward(), widths.engram()
    step = size.rows * (widths.shared() + max(phases)) + widths.sequences(size)
    num_sampled = min(size.sequences if size.prefill else size.rows, _SAMPLED_ROWS)
    sampled = max(_SAMPLED_NUMBERS * num_sampled, 3 * _SCORED_ROWS if size.prefill else 0)
    after = size.rows * (widths.shared() + 2 * widths.hidden) + sampled * architecture.vocab_size * widths.wide
    return max(step, after + widths.sequences(size))


class _Widths:
    """Bytes of one row in each phase."""

    def __init__(self, architecture: ModelArchitecture, numerics: Numerics) -> None:
        self._architecture, self._numerics = architecture, numerics
        self.act = {"bf16": 2, "f32": 4, "f64": 8}[numerics.activation]
        self.wide = 8 if numerics.activation == "f64" else 4
        self._attended = self.act if numerics.round_context else self.wide
        self.hidden = architecture.hidden_size * self.act
        self._streams = architecture.hyper_connection.num_streams * self.hidden

    def shared(self) -> int:
        """Lives as long as the step: inputs, metadata, what layers hand on, and what the draft module will read."""
        architecture, indexer = self._architecture, self._architecture.indexer
        selected = 3 * indexer.top_k + 2 * indexer.candidate_blocks  # the next selection is made beside the last one
        ratios = {ratio for ratio in architecture.compress_ratios if ratio}
        numbers = _STEP_COLUMNS + architecture.attention.sliding_window + selected + 3 * len(ratios)
        if (engram := architecture.engram) is not None:
            numbers += engram.max_ngram + len(engram.layer_ids) * engram.hash_columns
        features = len(architecture.draft.target_layer_ids) * self.hidden if architecture.draft else 0
        return _INT * numbers + features + architecture.attention.head_dim * self.act

    def attention(self) -> int:
        """Streams, the normed row, queries before and after the rotation, and what was attended to.

        The streams count twice, for a layer with n-gram memory has those before and after it.
        """
        shape, indexer = self._architecture.attention, self._architecture.indexer
        heads = shape.num_heads * shape.head_dim
        queries = heads + indexer.num_heads * indexer.head_dim
        first = shape.query_rank + shape.head_dim
        made = (first + queries + heads) * self.act + self._cast(shape.query_rank)
        index_query = indexer.num_heads * indexer.head_dim
        choosing = (index_query + 2 * indexer.num_heads + indexer.head_dim) * self.act + index_query
        compressing = 2 * shape.head_dim * self.wide + 2 * shape.head_dim * self.act
        attending = heads * self._attended + shape.head_dim * self.act + self.hidden
        entered = 2 * self._streams + self._mixes() + self.hidden + self._cast(self._architecture.hidden_size)
        return entered + made + max(choosing, compressing, attending)

    def feed_forward(self) -> int:
        """Streams of the layer, of this sub-layer and behind it, both outputs, the normed row and the routes."""
        routed = 2 * _INT * self._architecture.experts.experts_per_token
        cast = self._cast(self._architecture.hidden_size)
        return 3 * self._streams + 2 * self._mixes() + 3 * self.hidden + cast + routed

    def engram(self) -> int:
        """Streams before and after, the rows that were looked up, and their keys and values."""
        engram = self._architecture.engram
        if engram is None:
            return 0
        looked_up = engram.hash_columns * engram.head_dim
        return 2 * self._streams + 2 * looked_up + self._streams + self.hidden

    def sequences(self, size: StepSize) -> int:
        """What does not grow with the rows: the block table, window history and gathered entries."""
        shape = self._architecture.attention
        table = size.sequences * (4 + -(-size.max_context // BLOCK_TOKENS)) * _INT
        if not size.prefill:
            return table
        history = size.sequences * shape.sliding_window * (_INT + shape.head_dim * self.act)
        ratios = sorted({ratio for ratio in self._architecture.compress_ratios if ratio})
        slots = sum(size.context_tokens // ratio for ratio in ratios) * _INT
        entries = size.context_tokens // ratios[0] * shape.head_dim * self.act if ratios else 0
        return table + history + slots + entries

    def _mixes(self) -> int:
        """What a sub-layer is entered and left with: two mixes and the combination of streams."""
        num_streams = self._architecture.hyper_connection.num_streams
        return (3 * num_streams + num_streams**2) * self.wide

    def _cast(self, width: int) -> int:
        """A row in MXFP8, where the arithmetic rounds rows to it."""
        return width + width // FORMATS["mxfp8"].group if self._numerics.quantize_activations else 0
