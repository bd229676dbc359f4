"""Backends that compute something else than the contract says are caught at that op, by the suites that compare."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.metadata import window_slots
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.cases import Case
from deepinfer_core.ops.indexer.top_k import top_k
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.store import store
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.select_experts import select_experts
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.quantize.rounding import E4M3_MAX
from deepinfer_core.tensor import QuantTensor

_COMPARING = ("ops", "properties", "capture")


def _everywhere(name: str) -> set[str]:
    """The op in every suite that compares results."""
    return {f"{suite}/{name}" for suite in _COMPARING}


@pytest.mark.parametrize(
    "op",
    [window_slots, compress_pairs, store, linear, select_experts, rms_norm, quantize, top_k],
    ids=lambda op: op.name,
)
def test_right_implementation_passes(kit, right, op):
    """Without a bug the same planting finds nothing, so what the other tests find is the bug."""
    results = kit.results({op: Implementation(run=right(op))})

    assert [r.detail for r in results if r.status == "failed"] == []
    assert any(r.id.startswith(f"ops/{op.name}/") and r.id.endswith("/native") for r in results)


def test_transposed_weight_is_caught(kit, right):
    def transpose(weights, site):
        weight = weights["weight"]
        if isinstance(weight, QuantTensor):
            return {"weight": QuantTensor(weight.data.t().reshape(weight.data.shape), weight.scale, weight.format)}
        return {"weight": weight.t().reshape(weight.shape)}

    failing = kit.failing({linear: Implementation(run=right(linear), pack=transpose)})

    assert failing == _everywhere("linear.linear")


def test_window_off_by_one_is_caught(kit, right):
    def early(positions: Tensor, row_sequence: Tensor, state_slots: Tensor, *, window: int, ring: int) -> Any:
        slots, _ = right(window_slots)(positions - 1, row_sequence, state_slots, window=window, ring=ring)
        return slots, right(window_slots)(positions, row_sequence, state_slots, window=window, ring=ring)[1]

    failures = kit.failures({window_slots: Implementation(run=early)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == _everywhere("attention.window_slots")
    assert all("result[0]" in f.detail for f in failures if f.id.startswith("ops/"))


def test_ignored_padding_slot_is_caught(kit, right):
    def store_all(rows, slots, cache):
        right(store)(rows, slots.clamp_min(0), cache)

    failures = kit.failures({store: Implementation(run=store_all)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == _everywhere("kv_cache.store")
    assert {f.id.split("/")[-1] for f in failures if f.id.startswith("properties/")} == {
        "padding_rows",
        "padding_only",
        "sliced_inputs",
    }
    assert not any(f.id.startswith("ops/") and "shuffled" in f.id for f in failures), "without padding nothing is wrong"


def test_wrong_tie_rule_of_experts_is_caught_by_the_tied_case_alone(kit, right):
    def larger_index_first(logits, bias, *, experts_per_token, scaling):
        ids, weights = right(select_experts)(
            logits.flip(1), bias.flip(0), experts_per_token=experts_per_token, scaling=scaling
        )
        return logits.shape[1] - 1 - ids, weights

    failures = kit.failures({select_experts: Implementation(run=larger_index_first)})

    assert {f.id.split("/")[2] for f in failures} == {"ties_take_the_smaller_index"}
    assert {f.id.split("/")[0] for f in failures} == set(_COMPARING)


def test_wrong_tie_rule_of_selection_is_caught(kit, right):
    def any_order(scores, lengths, *, k):
        column = torch.arange(scores.shape[1])
        counted = torch.where(column < lengths[:, None], scores.double(), -torch.inf)
        nudged = counted + column * 1e-9  # the larger column wins a tie
        return right(top_k)(nudged, lengths, k=k)

    failing = kit.failing({top_k: Implementation(run=any_order)})

    assert failing == _everywhere("indexer.top_k")


def test_wrong_nibble_order_is_caught_for_four_bit_formats_alone(kit, right):
    def swap(x, *, format):
        made = right(quantize)(x, format=format)
        if made.spec.element != "e2m1":
            return made
        return QuantTensor((made.data << 4) | (made.data >> 4), made.scale, made.format)

    failures = kit.failures({quantize: Implementation(run=swap)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == _everywhere("quantize.quantize")
    assert {f.id.split("/")[2].split("_")[0] for f in failures} == {"mxfp4", "fp4"}


def test_stale_compressor_state_is_caught(kit, right):
    def forget(gate, value, positions, row_sequence, state_slots, context_lengths, ring, *, out):  # noqa: PLR0917  # the op's
        return right(compress_pairs)(
            gate, value, positions, row_sequence, state_slots, context_lengths, ring.clone(), out=out
        )

    failures = kit.failures({compress_pairs: Implementation(run=forget)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == _everywhere("kv_cache.compress_pairs")
    assert all("ring differs" in f.detail for f in failures)


def test_unsaturated_fp8_cast_is_caught(kit, right):
    beyond = Case("beyond", T=2, I=32, format="fp4_e4m3", make=lambda d: {"x": d.normal("T", "I", scale=8 * E4M3_MAX)})
    op = dataclasses.replace(quantize, _cases=lambda: iter([beyond]))

    def unsaturated(x, *, format):
        made = right(quantize)(x, format=format)
        scale = x.float().unflatten(-1, (-1, made.spec.group)).abs().amax(-1) / 6.0
        cast = torch.where(scale < 464.0, scale, torch.nan)  # what casts do that round past the largest value to NaN
        return QuantTensor(made.data, cast.to(torch.float8_e4m3fn).view(torch.uint8), format)

    assert "ops/quantize.quantize" not in kit.failing({op: Implementation(run=right(quantize))})
    assert "ops/quantize.quantize" in kit.failing({op: Implementation(run=unsaturated)})


def test_one_percent_error_is_caught(kit, right):
    def louder(x, weight, *, eps):
        return (right(rms_norm)(x, weight, eps=eps).double() * 1.01).to(x.dtype)

    failures = kit.failures({rms_norm: Implementation(run=louder)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == _everywhere("norm.rms_norm")
    (detail,) = [f.detail for f in failures if f.id == "ops/norm.rms_norm/many_rows/native"]
    assert "norm.rms_norm/many_rows" in detail
    assert "differs first at (0, " in detail
    assert "tolerances (allowed: relative 0.0078125 + absolute 0.001)" in detail
    assert "deepinfer conformance --accelerator planted --only ops/norm.rms_norm/many_rows/native" in detail


def test_one_percent_error_is_caught_where_single_elements_may_be_off_by_more(kit, right):
    def louder(*tensors, **named):
        return right(sparse_decode)(*tensors, **named) * 1.01

    failures = kit.failures({sparse_decode: Implementation(run=louder)})

    assert any(f.id.startswith("ops/attention.sparse_decode/") for f in failures)
    assert all("off by the factor 1.01" in f.detail for f in failures if f.id.startswith("ops/"))


def test_one_percent_error_before_rounding_to_codes_is_caught(kit, right):
    def louder(x, weight, **named):
        return right(rms_norm_quantize)(right, x, weight.float() * 1.01, **named)

    failures = kit.failures({rms_norm_quantize: Implementation(run=louder)})

    assert any(f.id.startswith("ops/norm.rms_norm_quantize/") for f in failures)
