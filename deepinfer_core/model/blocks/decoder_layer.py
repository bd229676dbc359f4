"""One backbone layer from its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.model.blocks.attention import Attention
from deepinfer_core.model.blocks.engram import Engram
from deepinfer_core.model.blocks.experts import Experts
from deepinfer_core.model.blocks.sub_layer import SubLayer
from deepinfer_core.ops.speculation.draft_features import draft_features

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import LayerParameters
    from deepinfer_core.model.step_inputs import StepContext


class DecoderLayer:
    """Engram (where configured), attention sub-layer, feed-forward sub-layer."""

    def __init__(self, builder: Builder, layer: int, parameters: LayerParameters) -> None:
        architecture = builder.architecture
        self._layer = layer
        self._engram = Engram(builder, parameters.engram) if parameters.engram else None
        self._attention_sub_layer = SubLayer(builder, parameters.attention_mix, parameters.attention_norm)
        self._attention = Attention(builder, layer, parameters.attention)
        self._feed_forward_sub_layer = SubLayer(builder, parameters.feed_forward_mix, parameters.feed_forward_norm)
        self._experts = Experts(builder, architecture.experts, parameters.experts)
        taps = architecture.draft.target_layer_ids if architecture.draft else ()
        self._tap = builder.bind(draft_features) if layer in taps else None

    def __call__(
        self, streams: Tensor, mix: Tensor, step: StepContext, engram_rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Streams and mix after the layer; writes its caches and shared values.

        Args:
            streams: ``[T, m, H]``.
            mix: Mix handed over by the layer before.
            step: Shared values of the step.
            engram_rows: Table rows of this layer's memory, where it has one.
        """
        layer = self._layer
        if self._engram is not None and engram_rows is not None:
            streams = self._engram(streams, engram_rows)
        if self._tap is not None:
            step.features[layer] = self._tap(streams)
        streams, mix, output = self._attention_sub_layer(streams, mix, lambda x: self._attention(x, step))
        step.trace(f"attn_out.{layer}", output)
        streams, mix, output = self._feed_forward_sub_layer(
            streams, mix, lambda x: self._experts(x, lambda name, value: step.trace(f"{name}.{layer}", value))
        )
        step.trace(f"ffn_out.{layer}", output)
        step.trace(f"streams.{layer}", streams)
        step.trace(f"pre_mix.{layer}", mix)
        return streams, mix

    def write_entries(self, streams: Tensor, mix: Tensor, step: StepContext) -> None:
        """Write what this layer caches for good, and nothing else, from the streams that enter it.

        Args:
            streams: ``[T, m, H]``.
            mix: Mix handed over by the layer before.
            step: Shared values of the step; ``latent`` is left in it.
        """
        self._attention.write_entries(self._attention_sub_layer.inner_input(streams, mix), step)

    def write_index_keys(self, step: StepContext) -> None:
        """Write this layer's index keys, where it owns any, of the entries that an earlier layer made."""
        self._attention.write_index_keys(step)
