"""Producers of compressed entries and of index keys (spec attention/02 and 03 section 1).

Every row makes an entry at ratio 1. At ratio 2 a row that closes no pair makes a row of zeros whose slot is
-1, so that shapes do not depend on positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import require
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import rotate_store
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.linear.stack import stack_rows
from deepinfer_core.ops.norm.rms_norm import rms_norm

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import CompressorParameters
    from deepinfer_core.model.step_inputs import StepContext


class Compressor:
    """Turns the attention input of a source layer into cached entries."""

    def __init__(self, builder: Builder, layer: int, parameters: CompressorParameters) -> None:
        architecture = builder.architecture
        width = architecture.attention.head_dim
        self._layer = layer
        self._ratio = architecture.compress_ratios[layer]
        self._table = builder.tables[1]
        self._norm_weight = parameters.norm
        weight, out = parameters.value, builder.act
        self._pairs = None
        if parameters.gate is not None:
            weight, out = stack_rows(parameters.gate, parameters.value), builder.wide
            self._pairs = builder.bind(compress_pairs, sizes={"D": width}, out=builder.act)
        sizes: dict[str, Any] = {"I": architecture.hidden_size, "O": weight.shape[0]}
        self._project = builder.bind(linear, weights={"weight": weight}, sizes=sizes, out=out)
        self._norm = builder.bind(rms_norm, sizes={"H": width}, eps=architecture.norm_eps)
        self._store = builder.bind(rotate_store, sizes={"D": width}, eps=architecture.norm_eps)

    def __call__(self, x: Tensor, step: StepContext) -> None:
        """Write the entries that close in this step, and leave their unrotated latents in ``step.latent``."""
        entries = step.entries[self._ratio]
        projected = self._project(x)
        if self._pairs is not None:
            gate, value = projected.chunk(2, -1)
            inputs = step.inputs
            ring = step.caches.compressor[self._layer]
            projected = self._pairs(
                gate, value, inputs.positions, inputs.row_sequence, inputs.state_slots, inputs.context_lengths, ring
            )
        step.latent = self._norm(projected, self._norm_weight)
        self._store(step.latent, entries.positions, self._table, entries.slots, step.caches.main[self._layer])


class IndexKeys:
    """Turns the latents of the nearest source layer into cached index keys."""

    def __init__(self, builder: Builder, layer: int, key: Tensor, key_norm: Tensor) -> None:
        architecture = builder.architecture
        head = architecture.indexer.head_dim
        self._layer = layer
        self._ratio = architecture.compress_ratios[layer]
        self._table = builder.tables[1]
        self._norm_weight = key_norm
        sizes: dict[str, Any] = {"I": architecture.attention.head_dim, "O": head}
        self._project = builder.bind(linear, weights={"weight": key}, sizes=sizes, out=builder.act)
        self._store = builder.bind(rotate_store, sizes={"D": head}, eps=architecture.norm_eps)

    def __call__(self, step: StepContext) -> None:
        """Write the keys of the entries that close in this step."""
        require(step.latent is not None, f"layer {self._layer} makes index keys before any layer made entries")
        entries = step.entries[self._ratio]
        keys = self._project(step.latent)
        cache = step.caches.index[self._layer]
        self._store(keys, entries.positions, self._table, entries.slots, cache, self._norm_weight)
