"""The comparison with golden files finds models that are wrong in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.config.numerics import variant
from deepinfer_core.conformance.implementations import NarrowedBackend
from deepinfer_core.engine.trace import Trace
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.hyper_connection.streams import update
from deepinfer_core.ops.indexer.top_k import top_k
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.reference.backend import CpuBackend
from tests.golden_agreement.agreement import compare_with, disagreeing
from tests.golden_agreement.golden_files import FILES
from tests.golden_agreement.workshop import Workshop

if TYPE_CHECKING:
    from torch import Tensor

QUERY_HEADS = {"tiny": 8, "mini_b": 4}
"""Index queries have fewer heads in both models, keys one."""


def wrong_backend(op: Op[..., Any], run: Callable[..., Any]) -> NarrowedBackend:
    """The CPU backend with one op replaced; what was made of that op whole is run as steps again."""
    whole = CpuBackend()
    kept = {each: entry for each, entry in whole.table.entries.items() if not contains(each, op)}
    return NarrowedBackend(whole, OpTable({**kept, op: (Implementation(run=run),)}))


def contains(whole: Op[..., Any], part: Op[..., Any]) -> bool:
    """Whether an op is a step of another, or of one of its steps."""
    return any(step.op is part or contains(step.op, part) for step in whole.parts)


def with_a_norm_of_each_query_head(num_heads: int) -> Callable[..., Tensor]:
    def rotate(x: Tensor, *args: Tensor, inverse: bool = False) -> Tensor:
        if x.shape[1] == num_heads and not inverse:
            x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return apply_rotary.reference(x, *args, inverse=inverse)

    return rotate


def with_the_larger_index_among_ties(scores: Tensor, lengths: Tensor, *, k: int) -> Tensor:
    """Selects from the row turned round, whose smaller index is the larger one."""
    width = scores.shape[1]
    column = torch.arange(width, dtype=torch.int32)
    seen = torch.where(column < lengths[:, None], scores, -torch.inf).flip(1)
    chosen = top_k.reference(seen, torch.full_like(lengths, width), k=k)
    counts = (chosen >= 0) & seen.gather(1, chosen.clamp_min(0).long()).isfinite()
    turned = torch.where(counts, width - 1 - chosen, width).sort(-1).values
    return torch.where(turned < width, turned, -1).to(torch.int32)


def without_sinks(query: Tensor, rows: Tensor, slots: Tensor, sink: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return sparse_prefill.reference(query, rows, slots, torch.full_like(sink, -torch.inf), *args, **kwargs)


def with_streams_mixed_the_other_way(output: Tensor, streams: Tensor, post: Tensor, combination: Tensor) -> Tensor:
    return update.reference(output, streams, post, combination.transpose(-1, -2).contiguous())


@pytest.mark.parametrize(
    ("prompt", "op", "run", "first"),
    [
        ("tiny/add", apply_rotary, with_a_norm_of_each_query_head(QUERY_HEADS["tiny"]), "attn_out.0"),
        ("mini_b/random_7", apply_rotary, with_a_norm_of_each_query_head(QUERY_HEADS["mini_b"]), "attn_out.0"),
        ("mini_b/random_33", top_k, with_the_larger_index_among_ties, "topk.4"),
        ("tiny/add", sparse_prefill, without_sinks, "attn_out.0"),
        ("tiny/add", update, with_streams_mixed_the_other_way, "router_weights.0"),
    ],
)
def test_wrong_model_is_found_at_the_place_where_it_is_wrong(
    workshop: Workshop, prompt: str, op: Op[..., Any], run: Callable[..., Any], first: str
) -> None:
    file = next(file for file in FILES if file.id == prompt)
    model = workshop.bound(file.model, variant("f32"), wrong_backend(op, run))

    found = compare_with(file, Trace(model, file.token_ids).run())

    assert [c.name for c in disagreeing(found)][:1] == [first]
