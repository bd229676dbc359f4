"""The n-gram memory: rows of all layers are hashed once per step, then each layer reads its own (spec model/06)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.engram.constants import constant_row
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.engram.ngram_context import ngram_context
from deepinfer_core.ops.linear.linear import linear

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.config.architecture import EngramArchitecture
    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.engram_tables import EngramTables
    from deepinfer_core.model.parameters import EngramParameters
    from deepinfer_core.model.step_inputs import StepInputs


class NgramHash:
    """Table rows of every engram layer for the rows of a step."""

    def __init__(self, builder: Builder, shape: EngramArchitecture, tables: EngramTables, pad_id: int) -> None:
        self._layers = tables.layer_ids
        self._context = builder.bind(ngram_context, max_ngram=shape.max_ngram, pad_id=pad_id)
        self._hash = [
            builder.bind(
                hash_rows,
                weights={
                    "multipliers": builder.place(constant_row(tables.multipliers[index])),
                    "primes": builder.place(constant_row(tables.primes[index])),
                    "offsets": builder.place(constant_row(tables.offsets[index])),
                },
                sizes={"L": shape.max_ngram, "U": shape.hash_columns},
            )
            for index in range(len(tables.layer_ids))
        ]

    def __call__(self, inputs: StepInputs) -> dict[int, Tensor]:
        """Rows ``[T, columns]`` by layer; they depend on token ids only."""
        ids = inputs.compressed_ids
        context = self._context(ids, inputs.positions, inputs.row_sequence, inputs.ngram_history)
        return {layer: hashed(context, ids) for layer, hashed in zip(self._layers, self._hash, strict=True)}


class Engram:
    """One layer's memory, added to the streams before anything else of the layer."""

    def __init__(self, builder: Builder, parameters: EngramParameters) -> None:
        architecture = builder.architecture
        width, outputs = parameters.kv.shape[1], parameters.kv.shape[0]
        self._lookup = builder.bind(
            lookup,
            weights={"table": parameters.table},
            sizes={"V": parameters.table.shape[0], "D": parameters.table.shape[1]},
        )
        self._project = builder.bind(
            linear, weights={"weight": parameters.kv}, sizes={"I": width, "O": outputs}, out=builder.act
        )
        self._gate = builder.bind(
            gate,
            weights={"query_weight": parameters.query_weight, "key_weight": parameters.key_weight},
            sizes={"C": architecture.hyper_connection.num_streams, "H": architecture.hidden_size},
            eps=architecture.norm_eps,
        )

    def __call__(self, streams: Tensor, rows: Tensor) -> Tensor:
        """Streams with the gated memory of their n-grams added."""
        return self._gate(streams, self._project(self._lookup(rows)))
