"""Backends whose numbers may be right, but that break another promise: each is caught by the suite for that promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.backend.binding import Binder
from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.conformance import suite_limits
from deepinfer_core.conformance.implementations import NarrowedBackend
from deepinfer_core.conformance.report import make_report
from deepinfer_core.conformance.subject import subject_of
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.attention.metadata import window_slots
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.kv_cache.store import store
from deepinfer_core.ops.limits import at_most
from deepinfer_core.ops.moe.select_experts import route
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.reference.backend import CpuBackend
from deepinfer_core.tensor import QuantTensor


def test_silent_fallback_is_caught(kit, right):
    def sometimes(x, weight, *, eps):
        if x.shape[0] > 16:
            return rms_norm(x, weight, eps=eps)
        return right(rms_norm)(x, weight, eps=eps)

    failures = kit.failures({rms_norm: Implementation(run=sometimes)})

    assert {f.id.split("/")[2] for f in failures} == {"many_rows"}
    assert all("ran the reference of norm.rms_norm" in f.detail for f in failures)


def test_composite_that_runs_the_references_of_its_steps_is_caught(kit, right):
    failures = kit.failures({route: Implementation(run=route.reference)})

    assert any(f.id.startswith("ops/moe.route/") for f in failures)
    assert all("ran the reference of" in f.detail for f in failures)
    assert kit.failures({route: Implementation(run=_alone(route, right))}) == []


def _alone(composite: Any, right: Any) -> Any:
    """A composite in one piece: its steps are copies too."""
    body = right(composite)
    return lambda *args, **kwargs: body(right, *args, **kwargs)


def test_write_outside_the_buffer_is_caught(kit, right):
    def one_byte_early(rows, slots, cache):
        right(store)(rows, slots, cache)
        before = cache.storage.storage_offset() - 1
        cache.storage.as_strided((1,), (1,), before).zero_()

    failures = kit.failures({store: Implementation(run=one_byte_early)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == {"ops/kv_cache.store", "properties/kv_cache.store"}
    assert all(
        "wrote outside cache.storage: 1 guard bytes changed, the first 1 bytes before its start" in f.detail
        for f in failures
    )


def test_mutated_input_is_caught(kit, right):
    def in_place(x, weight, *, eps):
        result = right(rms_norm)(x, weight, eps=eps)
        x.neg_()
        return result

    failures = kit.failures({rms_norm: Implementation(run=in_place)})

    assert {"/".join(f.id.split("/")[:2]) for f in failures} == {"ops/norm.rms_norm", "properties/norm.rms_norm"}
    assert all("changed its input x, which the contract does not list in mutates" in f.detail for f in failures)


def test_nan_that_becomes_zero_is_caught(kit, right):
    def hide(x, weight, *, eps):
        return right(rms_norm)(x, weight, eps=eps).nan_to_num(0.0)

    failures = kit.failures({rms_norm: Implementation(run=hide)})

    assert {(f.id.split("/")[0], f.id.split("/")[-1]) for f in failures} == {("properties", "poisoned_row")}


def test_nan_that_reaches_a_neighbour_is_caught(kit, right):
    def leak(x, weight, *, eps):
        return right(rms_norm)(x, weight, eps=eps) + (x * 0.0).sum(0, keepdim=True)

    failures = kit.failures({rms_norm: Implementation(run=leak)})

    assert {(f.id.split("/")[0], f.id.split("/")[-1]) for f in failures} == {("properties", "poisoned_row")}


def test_false_claim_of_row_invariance_is_caught(kit, right):
    def by_batch(x, weight, *, eps):
        up_and_down = 1.0 - 2.0 * (torch.arange(x.shape[1]) % 2)
        last_place = 0.6 * torch.finfo(x.dtype).eps * (x.shape[0] % 2) * up_and_down
        return (right(rms_norm)(x, weight, eps=eps).double() * (1.0 + last_place)).to(x.dtype)

    claimed = kit.failing({rms_norm: Implementation(run=by_batch, row_invariant=True)})
    unclaimed = kit.failing({rms_norm: Implementation(run=by_batch)})

    assert claimed == {"invariance/norm.rms_norm"}
    assert unclaimed == set()


def test_input_that_is_remembered_is_caught_by_replay(kit, right):
    seen: dict[int, torch.Tensor] = {}

    def baked(positions, row_sequence, state_slots, *, window, ring):
        positions = seen.setdefault(positions.data_ptr(), positions.clone())
        return right(window_slots)(positions, row_sequence, state_slots, window=window, ring=ring)

    failures = kit.failures({window_slots: Implementation(run=baked)})

    assert any(f.id.startswith("capture/attention.window_slots/") for f in failures)


def test_plan_reaches_the_implementation(kit, right):
    def planned(*args, plan, **kwargs):
        assert plan == "prepared"
        return right(sparse_decode)(*args, **kwargs)

    failures = kit.failures({sparse_decode: Implementation(run=planned, plan=lambda request: "prepared")})

    assert [f.detail for f in failures] == []


def test_private_storage_of_a_result_is_read_by_the_backends_own_op(kit, right):
    def backwards(data):
        return data.view(torch.uint8).flip(-1).view(data.dtype)

    def packed(x, *, format):
        made = right(quantize)(x, format=format)
        return QuantTensor(backwards(made.data), made.scale, made.format, storage="reversed")

    def unpacked(x, *, out):
        canonical = QuantTensor(backwards(x.data), x.scale, x.format) if x.storage == "reversed" else x
        return right(dequantize)(canonical, out=out)

    alone = kit.failing({quantize: Implementation(run=packed)})
    paired = kit.failures({quantize: Implementation(run=packed), dequantize: Implementation(run=unpacked)})

    assert "ops/quantize.quantize" in alone
    assert [f.detail for f in paired] == []


def test_limit_on_a_required_case_is_caught(kit, right):
    results = kit.results({rms_norm: Implementation(run=right(rms_norm), limits=(at_most("T", 4),))})

    assert {r.id for r in results if r.status == "failed"} == {"limits/norm.rms_norm/many_rows/required"}
    assert "limits/norm.rms_norm/many_rows/native" in {r.id for r in results if r.status == "refused"}
    assert not any(r.id == "ops/norm.rms_norm/many_rows/native" for r in results), "a refused case is not run"


def test_refusal_names_the_limit(kit, right):
    results = kit.results({rms_norm: Implementation(run=right(rms_norm), limits=(at_most("H", 300),))})

    (refused,) = [r for r in results if r.id == "limits/norm.rms_norm/one_row/native"]
    assert refused.status == "refused"
    assert refused.detail == "H=5120: H must be at most 300"


@pytest.mark.parametrize("run", [lambda x, weight: x, lambda weight, x, *, eps: x, lambda y, weight, *, eps: y])
def test_implementation_with_another_signature_is_caught(kit, run):
    failures = kit.failures({rms_norm: Implementation(run=run)})

    assert "limits/norm.rms_norm/signature/native" in {f.id for f in failures}


def test_missing_op_is_reported_and_refused_where_nothing_may_be_missing():
    backend = NarrowedBackend(CpuBackend(), OpTable())
    relaxed, strict = (
        subject_of(backend, (rms_norm,), policy) for policy in (FallbackPolicy.ALLOW_REFERENCE, FallbackPolicy.STRICT)
    )

    report = make_report(relaxed, "planted", [])
    (check,) = [c for c in suite_limits.checks(strict) if c.id == "limits/norm.rms_norm/policy"]

    assert [row.outcome for row in report.support] == ["reference"]
    assert "run by reference: norm.rms_norm" in report.as_text()
    assert not any(c.id.endswith("/policy") for c in suite_limits.checks(relaxed))
    with pytest.raises(AssertionError, match=r"norm\.rms_norm would run as reference \(no implementation\)"):
        check.run()


def test_missing_op_is_refused_at_binding_before_any_weight_is_packed():
    binder = Binder(NarrowedBackend(CpuBackend(), OpTable()), FallbackPolicy.STRICT)
    binder.bind(rms_norm, eps=1e-6)

    with pytest.raises(UnsupportedByBackend, match=r"backend 'cpu'.*norm\.rms_norm"):
        binder.finish()
