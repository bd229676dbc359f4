"""The text model: blocks in order, forward over the named tensors of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.errors import require
from deepinfer_core.model.blocks.decoder_layer import DecoderLayer
from deepinfer_core.model.blocks.engram import NgramHash
from deepinfer_core.model.blocks.sub_layer import Head
from deepinfer_core.model.draft import DraftModule
from deepinfer_core.model.step_inputs import EntryMetadata, StepContext
from deepinfer_core.ops.attention.metadata import context_gather, entry_metadata, window_slots
from deepinfer_core.ops.attention.window_indices import window_indices
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.hyper_connection.retain_rows import retain_rows
from deepinfer_core.ops.hyper_connection.streams import expand

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def __init__(
        self,
        builder: Builder,
        parameters: ModelParameters,
        hash_setup: HashSetup | None,
        *,
        draft_temperatures: Sequence[float] = (),
    ) -> None:
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
        self._retain_rows = builder.bind(
            retain_rows,
            sizes={"C": architecture.hyper_connection.num_streams, "H": architecture.hidden_size},
        )
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
            DraftModule(
                builder,
                builder.place(parameters.draft),
                self._embed,
                self._expand,
                self._logits,
                temperatures=draft_temperatures,
            )
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
        self._plan(inputs)
        windows, stores, history_slots = self._windows(inputs)
        step = StepContext(
            inputs=inputs,
            caches=caches,
            window_slots=windows,
            window_stores=stores,
            history_slots=history_slots,
            entries={ratio: self._entry_metadata(ratio, inputs) for ratio in self._entries},
            record=record,
        )
        step.decoder = self._begin_decoder(step)
        return step

    def forward(self, step: StepContext) -> Tensor:
        """Run every layer; returns the final normed rows ``[T, H]`` and fills caches and ``step.features``.

        Where the prompts of the step are truncated, the rows are those of ``step.returned`` only.
        """
        rows = self._hash(step.inputs) if self._hash is not None else {}
        streams, mix = self._expand(self._embed(step.inputs.ids))
        for layer, block in enumerate(self._encoder):
            streams, mix = block(streams, mix, step, rows.get(layer))
        later = step.returned
        if later.entries_written:
            streams, mix = self._enter_decoder(streams, mix, step)
        for layer, block in enumerate(self._decoder, len(self._encoder)):
            streams, mix = block(streams, mix, later, rows.get(layer))
        _, hidden = self._head(streams, mix)
        step.trace("final_hidden", hidden)
        return hidden

    def write_draft_context(self, step: StepContext) -> None:
        """Store the draft's context keys of the rows that a forward pass has run its target layers on."""
        draft = self.architecture.draft
        if self.draft is None or draft is None:
            return
        features = tuple(step.features[layer] for layer in draft.target_layer_ids)
        is_behind = min(draft.target_layer_ids) >= len(self._encoder)
        rows = step.returned if is_behind else step
        self.draft.write_context(features, rows.inputs.positions, rows.window_stores, step.caches.draft_window)

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of rows, wide."""
        return self._logits(hidden)

    def engram_rows(self, inputs: StepInputs) -> dict[int, Tensor]:
        """Table rows of each engram layer, for tracing."""
        return self._hash(inputs) if self._hash is not None else {}

    def _windows(self, inputs: StepInputs) -> tuple[Tensor, Tensor, Tensor | None]:
        """What each row reads, where it is stored, and in prefill the ring slots of the history."""
        arguments = (inputs.positions, inputs.row_sequence, inputs.state_slots)
        if not inputs.is_prefill:
            return *self._window_slots(*arguments), None
        windows, history_slots, stores = self._window_indices(
            *arguments, inputs.context_lengths, inputs.query_lengths, inputs.window_start
        )
        return windows, stores, history_slots

    def _begin_decoder(self, step: StepContext) -> StepContext | None:
        """What the decoder layers share where prompts are truncated; their entries are those of the cut's ratio, 1."""
        decoder = step.inputs.decoder
        if decoder is None:
            return None
        windows, stores, history_slots = self._windows(decoder.inputs)
        is_compact = decoder.rows is not None
        return StepContext(
            inputs=decoder.inputs,
            caches=step.caches,
            window_slots=windows,
            window_stores=stores,
            history_slots=history_slots,
            entries={1: self._retained_entries(decoder.inputs, step.entries[1])} if is_compact else step.entries,
            record=step.record,
            features=step.features,
            entries_written=is_compact,
        )

    def _enter_decoder(self, streams: Tensor, mix: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Write what the decoder layers cache for good, from all rows, and go on with the retained ones.

        The first decoder layer is the last that makes entries; index keys of later layers are made of its entries.
        """
        first, *later = self._decoder
        first.write_entries(streams, mix, step)
        for block in later:
            block.write_index_keys(step)
        decoder = step.inputs.decoder
        require(decoder is not None and decoder.rows is not None, "rows are retained that no step inputs list")
        self._plan(step.inputs.returned)
        return self._retain_rows(streams, mix, decoder.rows if decoder else None)

    def _plan(self, inputs: StepInputs) -> None:
        """Let implementations that plan prepare this step, before anything is captured."""
        rows, sequences = inputs.positions.shape[0], inputs.state_slots.shape[0]
        context = inputs.block_table.shape[1] * BLOCK_TOKENS
        request = PlanRequest(rows, sequences, context, inputs.is_prefill)
        for bound in self._binder.planned:
            if bound.planner is not None:
                bound.plan_value = bound.planner(request)

    def _entry_metadata(self, ratio: int, inputs: StepInputs) -> EntryMetadata:
        metadata = self._entry_rows(ratio, inputs)
        if inputs.host_context_lengths is not None:
            total = sum(length // ratio for length in inputs.host_context_lengths)
            metadata.gather_slots, metadata.starts = self._gather[ratio](
                inputs.context_lengths, inputs.block_table, total=total
            )
        return metadata

    def _retained_entries(self, inputs: StepInputs, whole: EntryMetadata) -> EntryMetadata:
        """Metadata of retained rows; the gathered context is that of the whole step."""
        metadata = self._entry_rows(1, inputs)
        metadata.gather_slots, metadata.starts = whole.gather_slots, whole.starts
        return metadata

    def _entry_rows(self, ratio: int, inputs: StepInputs) -> EntryMetadata:
        visible, slots, positions = self._entries[ratio](
            inputs.positions, inputs.row_sequence, inputs.block_table, inputs.store_from
        )
        return EntryMetadata(visible=visible, slots=slots, positions=positions)
