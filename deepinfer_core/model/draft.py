"""The draft module: context keys from the target's features, and one block of drafts (spec model/09)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.model.blocks.attention import Projections
from deepinfer_core.model.blocks.experts import Experts
from deepinfer_core.model.blocks.sub_layer import Head, SubLayer
from deepinfer_core.ops.attention.draft_slots import draft_slots
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.kv_cache.rotate_store import rotate_store
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.linear.stack import join_columns, stack_rows
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.markov_logits import markov_logits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from deepinfer_core.backend.binding import BoundOp
    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import DraftParameters, LayerParameters
    from deepinfer_core.tensor import Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInputs:
    """One draft pass over ``B`` sequences; int32 tensors.

    Attributes:
        ids: Token of each row ``[B block]``: the sampled token, then noise tokens.
        positions: Position of each row, ``anchor .. anchor + block - 1``.
        row_sequence: Sequence of each row; -1 for padding.
        state_slots: State slot of each sequence ``[B]``.
    """

    ids: Tensor
    positions: Tensor
    row_sequence: Tensor
    state_slots: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """What the draft network says about each row, before the heads.

    Attributes:
        hidden: Collapsed rows before the final norm ``[B block, H]``.
        base_logits: Logits without the Markov correction ``[B block, V]``, wide.
    """

    hidden: Tensor
    base_logits: Tensor


class DraftModule:
    """Draft layers and heads; embedding and vocabulary head are the backbone's."""

    def __init__(
        self,
        builder: Builder,
        parameters: DraftParameters,
        embed: BoundOp,
        expand: BoundOp,
        logits: BoundOp,
        *,
        temperatures: Sequence[float] = (),
    ) -> None:
        """Bind the module.

        Args:
            builder: Of the graph.
            parameters: Its weights.
            embed: The backbone's embedding.
            expand: Makes streams of its rows.
            logits: The backbone's vocabulary head.
            temperatures: Of the confidence head at each draft, 1 where none is given.
        """
        architecture, shape = builder.architecture, builder.architecture.attention
        self._embed, self._expand, self._logits = embed, expand, logits
        self._cast = builder.bind_cast()
        weight = parameters.feature_projection
        sizes: dict[str, Any] = {"I": weight.shape[1], "O": weight.shape[0]}
        self._project = builder.bind(linear, weights={"weight": weight}, sizes=sizes, out=builder.act)
        self._norm_weight = parameters.feature_norm
        self._norm = builder.bind(rms_norm, sizes={"H": architecture.hidden_size}, eps=architecture.norm_eps)
        self._layers = [DraftLayer(builder, index, p) for index, p in enumerate(parameters.layers)]
        kv = stack_rows(*(layer.attention.kv for layer in parameters.layers))
        self._context_keys = builder.bind(
            linear, weights={"weight": kv}, sizes={"I": kv.shape[1], "O": kv.shape[0]}, out=builder.act
        )
        self._head = Head(builder, parameters.norm, parameters.head_mix)
        self._slots = builder.bind(
            draft_slots,
            window=shape.sliding_window,
            ring=shape.window_ring_rows,
            block=architecture.draft.block_size if architecture.draft else 1,
        )
        self._markov = builder.bind(
            markov_logits, weights={"embedding": parameters.markov_embedding, "head": parameters.markov_head}
        )
        head = {"embedding": parameters.markov_embedding, "weight": parameters.confidence}
        bound = {t: builder.bind(confidence, weights=head, temperature=t) for t in sorted({1.0, *temperatures})}
        self._uncalibrated = bound[1.0]
        self._confidence = [bound[temperature] for temperature in temperatures]

    def write_context(
        self, features: tuple[Tensor, ...], positions: Tensor, stores: Tensor, rings: Mapping[int, Cache]
    ) -> None:
        """Store the context keys of main rows in every draft ring.

        Args:
            features: Mean streams entering each target layer ``[T, H]``, in the config's order.
            positions: Position of each row.
            stores: Ring slot of each row, -1 to skip it.
            rings: Draft rings by draft layer.
        """
        rows = self._norm(self._project(self._cast(join_columns(features))), self._norm_weight)
        keys = self._context_keys(self._cast(rows)).chunk(len(self._layers), -1)
        for layer, key in zip(self._layers, keys, strict=True):
            layer.store_key(key, positions, stores, rings)

    def forward(self, inputs: DraftInputs, rings: Mapping[int, Cache]) -> DraftRows:
        """Run the draft layers over one block per sequence; rows of a block see each other and the context."""
        reads, stores = self._slots(inputs.positions, inputs.row_sequence, inputs.state_slots)
        streams, mix = self._expand(self._embed(inputs.ids))
        for layer in self._layers:
            streams, mix = layer(streams, mix, inputs, reads, stores, rings)
        hidden, normed = self._head(streams, mix)
        return DraftRows(hidden=hidden, base_logits=self._logits(normed))

    def correct(self, base_logits: Tensor, previous: Tensor) -> Tensor:
        """Logits with the Markov correction by the token before (int32 ``[T]``)."""
        return self._markov(base_logits, previous)

    def confidence(self, hidden: Tensor, previous: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Logit and probability that draft ``index`` of a block will be accepted."""
        bound = self._confidence[index] if index < len(self._confidence) else self._uncalibrated
        return bound(hidden, previous)


class DraftLayer:
    """One layer of the draft: window attention over context and block, then experts."""

    def __init__(self, builder: Builder, index: int, parameters: LayerParameters) -> None:
        architecture, shape, numerics = builder.architecture, builder.architecture.attention, builder.numerics
        self._index = index
        self._cast = builder.bind_cast()
        self._projections = Projections(builder, parameters.attention, compressed=False)
        self._attention_sub_layer = SubLayer(builder, parameters.attention_mix, parameters.attention_norm)
        self._feed_forward_sub_layer = SubLayer(builder, parameters.feed_forward_mix, parameters.feed_forward_norm)
        experts = architecture.draft.experts if architecture.draft else architecture.experts
        self._experts = Experts(builder, experts, parameters.experts)
        self._store = builder.bind(rotate_store, sizes={"D": shape.head_dim}, eps=architecture.norm_eps)
        self._attend = builder.bind(
            sparse_decode,
            sizes={"N": shape.num_heads, "D": shape.head_dim},
            scale=shape.softmax_scale,
            round_probabilities=numerics.round_probabilities,
            out=builder.act if numerics.round_context else builder.wide,
        )

    def __call__(
        self,
        streams: Tensor,
        mix: Tensor,
        inputs: DraftInputs,
        reads: Tensor,
        stores: Tensor,
        rings: Mapping[int, Cache],
    ) -> tuple[Tensor, Tensor]:
        """Streams and mix after the layer; the block's keys are in the ring afterwards."""

        def attention(x: Tensor) -> Tensor:
            query, key, _ = self._projections.queries(self._cast(x), inputs.positions)
            self.store_key(key, inputs.positions, stores, rings)
            attended = self._attend(query, rings[self._index], reads, self._projections.sink)
            return self._projections.output(attended, inputs.positions)

        streams, mix, _ = self._attention_sub_layer(streams, mix, attention)
        streams, mix, _ = self._feed_forward_sub_layer(streams, mix, lambda x: self._experts(x, _untraced))
        return streams, mix

    def store_key(self, key: Tensor, positions: Tensor, stores: Tensor, rings: Mapping[int, Cache]) -> None:
        """Store keys of a block or of its context, unrotated ``[T, D]``, in this layer's ring."""
        self._store(key, positions, self._projections.table, stores, rings[self._index], self._projections.kv_norm)


def _untraced(name: str, value: Tensor) -> None:
    del name, value
