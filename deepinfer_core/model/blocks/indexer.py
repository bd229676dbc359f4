"""The selection of compressed entries in index source layers (spec attention/03)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import require
from deepinfer_core.model.blocks.compressor import IndexKeys
from deepinfer_core.ops.indexer.index_scores import index_scores
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import IndexerParameters
    from deepinfer_core.model.step_inputs import StepContext


class Indexer:
    """Scores index keys and selects entries, for this layer and those that reuse its selection."""

    def __init__(self, builder: Builder, layer: int, parameters: IndexerParameters) -> None:
        architecture, numerics = builder.architecture, builder.numerics
        shape = architecture.indexer
        self._layer, self._ratio, self._shape = layer, architecture.compress_ratios[layer], shape
        self._source = architecture.index_key_source(layer)
        self._within = architecture.uses_candidates(layer)
        self._table = builder.tables[1]
        self._weight_scale = shape.score_scale if numerics.score_mode == "wide" else 1.0
        self._traced_scale = shape.score_scale / self._weight_scale
        self._keys = (
            IndexKeys(builder, layer, parameters.key, parameters.key_norm)
            if parameters.key is not None and parameters.key_norm is not None
            else None
        )
        sizes: dict[str, Any] = {"X": shape.num_heads, "D": shape.head_dim}
        self._rotate = builder.bind(apply_rotary, sizes={"N": shape.num_heads, "D": shape.head_dim})
        self._cast = builder.bind(quantize, sizes={"I": shape.head_dim}, format="mxfp4")
        weight = parameters.head_weights
        self._head_weights = builder.bind(
            linear,
            weights={"weight": weight},
            sizes={"I": architecture.hidden_size, "O": shape.num_heads},
            out=builder.act,
        )
        self._scores = builder.bind(index_scores, sizes=sizes, score_mode=numerics.score_mode)
        common: dict[str, Any] = {"score_mode": numerics.score_mode, "k": shape.top_k}
        if self._within:
            self._select = builder.bind(
                select_within_candidates,
                sizes={**sizes, "Y": shape.candidate_blocks},
                candidate_block_size=shape.candidate_block_size,
                **common,
            )
        else:
            blocks = shape.candidate_blocks if layer == shape.candidate_source_layer else 0
            self._select = builder.bind(
                select_entries,
                sizes=sizes,
                candidate_blocks=blocks,
                candidate_block_size=max(shape.candidate_block_size, 1),
                **common,
            )

    def __call__(self, x: Tensor, projected: Tensor, step: StepContext) -> None:
        """Select entries and leave them in ``step.selected`` (and candidates in ``step.candidates``).

        Args:
            x: Attention input ``[T, H]``, not quantised.
            projected: Index queries before rotation ``[T, heads * head_dim]``.
            step: Shared values of the step.
        """
        heads, width = self._shape.num_heads, self._shape.head_dim
        rotated = self._rotate(projected.unflatten(-1, (heads, width)), step.inputs.positions, self._table)
        query = self._cast(rotated)
        weights = self._head_weights(x) * self._weight_scale
        arguments = (query, weights, step.caches.index[self._key_layer], *self._rows(step))
        lengths = step.inputs.host_query_lengths
        if self._within:
            require(
                step.candidates is not None, f"layer {self._layer} selects within candidates before any were chosen"
            )
            step.selected = self._select(*arguments, step.candidates, query_lengths=lengths)
        else:
            step.selected, candidates = self._select(*arguments, query_lengths=lengths)
            step.candidates = candidates if candidates is not None else step.candidates
        if step.record is not None:
            self._trace(arguments, step)

    def write_keys(self, step: StepContext) -> None:
        """Write this layer's index keys, where it owns any, of the entries in ``step.latent``."""
        if self._keys is not None:
            self._keys(step)

    @property
    def _key_layer(self) -> int:
        require(self._source is not None, f"layer {self._layer} selects entries but no layer owns index keys")
        return self._source or 0

    def _rows(self, step: StepContext) -> tuple[Tensor, Tensor, Tensor]:
        return step.inputs.block_table, step.inputs.row_sequence, step.entries[self._ratio].visible

    def _trace(self, arguments: tuple[object, ...], step: StepContext) -> None:
        """Record the selection and, separately computed, the scores it was made from."""
        if step.selected is not None:
            step.trace(f"topk.{self._layer}", step.selected)
        scores = self._scores(*arguments, query_lengths=step.inputs.host_query_lengths) * self._traced_scale
        if self._within and step.candidates is not None:
            size = self._shape.candidate_block_size
            blocks = -(-scores.shape[1] // size)
            allowed = (
                (step.candidates.unsqueeze(-1) == _arange(step.candidates, blocks)).any(1).repeat_interleave(size, 1)
            )
            scores = scores.masked_fill(~allowed[:, : scores.shape[1]], -float("inf"))
        step.trace(f"index_scores.{self._layer}", scores)


def _arange(like: Tensor, count: int) -> Tensor:
    """``0 .. count - 1`` on the device of ``like``."""
    return like.new_ones(count).cumsum(0) - 1
