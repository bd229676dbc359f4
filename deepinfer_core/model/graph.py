"""The text model: blocks in order, forward over the named tensors of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.model.blocks.decoder_layer import DecoderLayer
from deepinfer_core.model.blocks.engram import NgramHash
from deepinfer_core.model.blocks.sub_layer import Head
from deepinfer_core.model.draft import DraftModule
from deepinfer_core.model.step_inputs import EntryMetadata, StepContext
from deepinfer_core.ops.attention.metadata import context_gather, entry_metadata, window_indices, window_slots
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.hyper_connection.streams import expand

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.engram_tables import EngramTables
    from deepinfer_core.model.parameters import ModelParameters
    from deepinfer_core.model.step_inputs import KVCaches, Recorder, StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSetup:
    """What the n-gram hash needs besides the weights: its constants and the compressed id of padding."""

    tables: EngramTables
    pad_id: int


class ModelGraph:
    """A bound text model. It calls ops and nothing else; it knows no device."""

    def __init__(self, builder: Builder, parameters: ModelParameters, hash_setup: HashSetup | None) -> None:
        architecture = builder.architecture
        self.architecture = architecture
        self._binder = builder.binder
        self._embed = builder.bind(
            token_embedding,
            weights={"table": builder.place(parameters.embedding)},
            sizes={"V": architecture.vocab_size, "H": architecture.hidden_size},
            out=builder.act,
        )
        self._expand = builder.bind(expand, num_streams=architecture.hyper_connection.num_streams)
        self._hash = None
        if architecture.engram is not None and hash_setup is not None:
            self._hash = NgramHash(builder, architecture.engram, hash_setup.tables, hash_setup.pad_id)
        layers = [DecoderLayer(builder, layer, builder.place(p)) for layer, p in enumerate(parameters.layers)]
        self._encoder, self._decoder = (
            layers[: architecture.num_encoder_layers],
            layers[architecture.num_encoder_layers :],
        )
        self._head = Head(builder, builder.place(parameters.norm), builder.place(parameters.head_mix))
        self._logits = builder.bind(
            vocabulary_logits,
            weights={"head": builder.place(parameters.head)},
            sizes={"V": architecture.vocab_size, "H": architecture.hidden_size},
        )
        self.draft = (
            DraftModule(builder, builder.place(parameters.draft), self._embed, self._expand, self._logits)
            if parameters.draft
            else None
        )
        self._bind_metadata(builder)

    def _bind_metadata(self, builder: Builder) -> None:
        """Ops that turn positions into slots; they serve every layer of a step."""
        shape = builder.architecture.attention
        ring: dict[str, Any] = {"window": shape.sliding_window, "ring": shape.window_ring_rows}
        self._window_slots = builder.bind(window_slots, **ring)
        self._window_indices = builder.bind(window_indices, **ring)
        ratios = builder.architecture.ratios
        self._entries = {r: builder.bind(entry_metadata, ratio=r, rows_per_block=BLOCK_TOKENS // r) for r in ratios}
        self._gather = {r: builder.bind(context_gather, ratio=r, rows_per_block=BLOCK_TOKENS // r) for r in ratios}

    def begin(self, inputs: StepInputs, caches: KVCaches, record: Recorder | None = None) -> StepContext:
        """Derive what all layers of a step share: slots, indices, plans."""
        history_slots = None
        arguments = (inputs.positions, inputs.row_sequence, inputs.state_slots)
        if inputs.is_prefill:
            windows, history_slots, stores = self._window_indices(
                *arguments, inputs.context_lengths, inputs.query_lengths
            )
        else:
            windows, stores = self._window_slots(*arguments)
        self._plan(inputs)
        return StepContext(
            inputs=inputs,
            caches=caches,
            window_slots=windows,
            window_stores=stores,
            history_slots=history_slots,
            entries={ratio: self._entry_metadata(ratio, inputs) for ratio in self._entries},
            record=record,
        )

    def forward(self, step: StepContext) -> Tensor:
        """Run every layer; returns the final normed rows ``[T, H]`` and fills caches and ``step.features``."""
        rows = self._hash(step.inputs) if self._hash is not None else {}
        streams, mix = self._expand(self._embed(step.inputs.ids))
        for layer, block in enumerate((*self._encoder, *self._decoder)):
            streams, mix = block(streams, mix, step, rows.get(layer))
        _, hidden = self._head(streams, mix)
        step.trace("final_hidden", hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of rows, wide."""
        return self._logits(hidden)

    def engram_rows(self, inputs: StepInputs) -> dict[int, Tensor]:
        """Table rows of each engram layer, for tracing."""
        return self._hash(inputs) if self._hash is not None else {}

    def _plan(self, inputs: StepInputs) -> None:
        """Let implementations that plan prepare this step, before anything is captured."""
        rows, sequences = inputs.ids.shape[0], inputs.state_slots.shape[0]
        context = inputs.block_table.shape[1] * BLOCK_TOKENS
        request = PlanRequest(rows, sequences, context, inputs.is_prefill)
        for bound in self._binder.planned:
            if bound.planner is not None:
                bound.plan_value = bound.planner(request)

    def _entry_metadata(self, ratio: int, inputs: StepInputs) -> EntryMetadata:
        visible, slots, positions = self._entries[ratio](inputs.positions, inputs.row_sequence, inputs.block_table)
        metadata = EntryMetadata(visible=visible, slots=slots, positions=positions)
        if inputs.host_context_lengths is not None:
            total = sum(length // ratio for length in inputs.host_context_lengths)
            metadata.gather_slots, metadata.starts = self._gather[ratio](
                inputs.context_lengths, inputs.block_table, total=total
            )
        return metadata
