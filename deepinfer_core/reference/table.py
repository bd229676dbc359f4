"""Native implementations of the CPU backend, op by op; everything that is not listed runs by its reference."""

from __future__ import annotations

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import expert_mlp
from deepinfer_core.reference.experts import run_expert_mlp
from deepinfer_core.reference.linear import (
    dense_implementation,
    pack_dense,
    run_grouped_linear,
    run_linear,
    run_vocabulary_logits,
)

TABLE = OpTable(
    {
        linear: (dense_implementation(run_linear),),
        grouped_linear: (dense_implementation(run_grouped_linear),),
        vocabulary_logits: (dense_implementation(run_vocabulary_logits),),
        expert_mlp: (Implementation(run_expert_mlp, pack=pack_dense, note="rows sorted by expert; dense products"),),
    }
)
