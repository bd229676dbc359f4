"""One layer's attention: projections, window, selected entries, output (spec attention/01)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.model.blocks.compressor import Compressor
from deepinfer_core.model.blocks.indexer import Indexer
from deepinfer_core.ops.attention.metadata import context_indices, entry_slots
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.kv_cache.store import load
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.linear.stack import stack_rows
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import AttentionParameters
    from deepinfer_core.model.step_inputs import StepContext
    from deepinfer_core.tensor import Cache, QuantTensor


class Projections:
    """Queries, keys and output of one attention, the part that backbone and draft layers share."""

    def __init__(self, builder: Builder, parameters: AttentionParameters, *, compressed: bool) -> None:
        architecture, shape = builder.architecture, builder.architecture.attention
        self._rank, self._width, self._heads = shape.query_rank, shape.head_dim, shape.num_heads
        self._eps = architecture.norm_eps
        self.table = builder.tables[1 if compressed else 0]
        self.kv_norm, self.sink = parameters.kv_norm, parameters.sink
        self._query_norm = parameters.query_norm
        act, hidden = builder.act, architecture.hidden_size
        first = stack_rows(parameters.query_a, parameters.kv)
        second = (
            parameters.query_b
            if parameters.indexer is None
            else stack_rows(parameters.query_b, parameters.indexer.query)
        )
        self._query_a_kv = builder.bind(
            linear, weights={"weight": first}, sizes={"I": hidden, "O": first.shape[0]}, out=act
        )
        self._query_b = builder.bind(
            linear, weights={"weight": second}, sizes={"I": self._rank, "O": second.shape[0]}, out=act
        )
        self._norm = builder.bind(rms_norm, sizes={"H": self._rank}, eps=self._eps)
        self._cast = builder.bind_cast()
        self._rotate = builder.bind(apply_rotary, sizes={"N": self._heads, "D": self._width})
        self._output = builder.bind(
            project_output,
            weights={"output_a": parameters.output_a, "output_b": parameters.output_b},
            sizes={"N": self._heads, "D": self._width, "O": parameters.output_a.shape[0], "H": hidden},
            groups=shape.output_groups,
            quantize_input=builder.numerics.quantize_activations,
            out=act,
        )

    def queries(self, x: Tensor | QuantTensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``[T, N, D]``, unrotated window keys ``[T, D]``, index queries ``[T, ...]`` (maybe empty)."""
        latent, key = self._query_a_kv(x).split((self._rank, self._width), -1)
        latent = self._cast(self._norm(latent, self._query_norm))
        wide = self._query_b(latent)
        query, index = wide[:, : self._heads * self._width], wide[:, self._heads * self._width :]
        return self._rotate(query.unflatten(-1, (self._heads, self._width)), positions, self.table), key, index

    def output(self, attended: Tensor, positions: Tensor) -> Tensor:
        """Attended heads -> hidden size ``[T, H]``."""
        return self._output(attended, positions, self.table)


class Attention:
    """The attention sub-layer of a backbone layer, whatever its kind."""

    def __init__(self, builder: Builder, layer: int, parameters: AttentionParameters) -> None:
        architecture, shape, numerics = builder.architecture, builder.architecture.attention, builder.numerics
        self._layer, self._ratio = layer, architecture.compress_ratios[layer]
        self._source = architecture.kv_source(layer)
        self._projections = Projections(builder, parameters, compressed=self._ratio > 0)
        self._compressor = Compressor(builder, layer, parameters.compressor) if parameters.compressor else None
        self._indexer = Indexer(builder, layer, parameters.indexer) if parameters.indexer else None
        self._cast = builder.bind_cast()
        sizes: dict[str, Any] = {
            "N": shape.num_heads,
            "D": shape.head_dim,
            "W": shape.sliding_window,
            "S": architecture.indexer.top_k,
        }
        attend: dict[str, Any] = {
            "scale": shape.softmax_scale,
            "round_probabilities": numerics.round_probabilities,
            "out": builder.act if numerics.round_context else builder.wide,
        }
        self._prefill = builder.bind(sparse_prefill, sizes=sizes, **attend)
        self._decode = builder.bind(sparse_decode, sizes=sizes, **attend)
        self._extend_window = builder.bind(
            extend_window, sizes={"D": shape.head_dim}, eps=architecture.norm_eps, out=builder.act
        )
        self._store_window = builder.bind(rotate_store, sizes={"D": shape.head_dim}, eps=architecture.norm_eps)
        if self._ratio:
            self._load = builder.bind(load, sizes={"D": shape.head_dim}, out=builder.act)
            self._to_rows = builder.bind(context_indices)
            self._to_slots = builder.bind(entry_slots, rows_per_block=BLOCK_TOKENS // self._ratio)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Attend; writes this layer's caches and the values shared with later layers.

        Args:
            x: Normed input ``[T, H]``.
            step: Shared values of the step.
        """
        positions = step.inputs.positions
        query, key, index_query = self._projections.queries(self._cast(x), positions)
        if not step.entries_written:
            self.write_entries(x, step)
        if self._compressor is not None:
            step.context_rows = None
        if self._indexer is not None:
            self._indexer(x, index_query, step)
            step.context_slots = None
        attended = (
            self._attend_prompt(query, key, step) if step.inputs.is_prefill else self._attend_decode(query, key, step)
        )
        return self._projections.output(attended, positions)

    def write_entries(self, x: Tensor, step: StepContext) -> None:
        """Write the entries that close in this step and their index keys, where this layer owns any.

        Args:
            x: Normed input of every row ``[T, H]``.
            step: Shared values of the step; ``latent`` is left in it.
        """
        if self._compressor is not None:
            self._compressor(x, step)
        self.write_index_keys(step)

    def write_index_keys(self, step: StepContext) -> None:
        """Write this layer's index keys, where it owns any, of the entries in ``step.latent``."""
        if self._indexer is not None:
            self._indexer.write_keys(step)

    def _attend_prompt(self, query: Tensor, key: Tensor, step: StepContext) -> Tensor:
        """Window history is read before the ring is written; entries are gathered once per source layer."""
        ring, projections = step.caches.window[self._layer], self._projections
        rows = self._extend_window(
            key,
            projections.kv_norm,
            step.inputs.positions,
            projections.table,
            step.history_slots,
            step.window_stores,
            ring,
        )
        if not self._ratio:
            return self._prefill(query, rows, step.window_slots, projections.sink)
        entries = step.entries[self._ratio]
        if step.context_rows is None:
            step.context_rows = self._load(entries.gather_slots, self._main(step))
        if step.context_slots is None:
            step.context_slots = self._to_rows(step.selected, step.inputs.row_sequence, entries.starts)
        return self._prefill(query, rows, step.window_slots, projections.sink, step.context_rows, step.context_slots)

    def _attend_decode(self, query: Tensor, key: Tensor, step: StepContext) -> Tensor:
        """This step's keys are stored before any row reads."""
        ring, projections = step.caches.window[self._layer], self._projections
        self._store_window(key, step.inputs.positions, projections.table, step.window_stores, ring, projections.kv_norm)
        if not self._ratio:
            return self._decode(query, ring, step.window_slots, projections.sink)
        if step.context_slots is None:
            step.context_slots = self._to_slots(step.selected, step.inputs.row_sequence, step.inputs.block_table)
        return self._decode(query, ring, step.window_slots, projections.sink, self._main(step), step.context_slots)

    def _main(self, step: StepContext) -> Cache:
        return step.caches.main[self._source if self._source is not None else self._layer]
