"""Binding: what a batch-invariant run accepts, and what bound ops say about the memory they take."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.backend.binding import Binder
from deepinfer_core.backend.interface import Implementation, OpTable, PlanRequest
from deepinfer_core.conformance.implementations import NarrowedBackend
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.limits import Site, at_most
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.reference.backend import CpuBackend


def run(*args: Any, **kwargs: Any) -> None:
    """Stands for a kernel; binding never calls it."""


FAST = Implementation(run, note="fast")
STEADY = Implementation(run, note="steady", row_invariant=True)


def binder(row_invariant: bool, **entries: Any) -> Binder:
    ops = {op.name.split(".")[1]: op for op in (rms_norm, quantize, rms_norm_quantize, token_embedding)}
    table = OpTable({ops[name]: found for name, found in entries.items()})
    return Binder(NarrowedBackend(CpuBackend(), table), row_invariant=row_invariant)


def test_first_implementation_is_bound_unless_row_invariance_is_asked_for() -> None:
    relaxed, strict = (binder(asked, rms_norm=(FAST, STEADY)) for asked in (False, True))
    for one in (relaxed, strict):
        one.bind(rms_norm, eps=1e-6)

    assert [row.reason for row in relaxed.finish().rows] == ["fast"]
    assert [row.reason for row in strict.finish().rows] == ["steady"]


def test_every_op_without_a_row_invariant_way_is_named_with_its_reason() -> None:
    narrow = Implementation(run, (at_most("H", 8),), row_invariant=True)
    strict = binder(True, rms_norm=(FAST, narrow), quantize=(FAST,))
    strict.bind(rms_norm, eps=1e-6, sizes={"H": 9})
    strict.bind(quantize, format="mxfp8")

    with pytest.raises(UnsupportedByBackend) as caught:
        strict.finish()

    text = str(caught.value)
    assert "norm.rms_norm would run as reference" in text
    assert "an implementation is not row-invariant; H=9: H must be at most 8" in text
    assert "batch_invariant needs that" in text
    assert ("quantize.quantize" in text) == (quantize.tolerance.kind != "exact")


def test_exact_reference_and_op_without_row_axis_are_accepted() -> None:
    strict = binder(True)
    strict.bind(token_embedding, weights={"table": None}, out="bf16")
    strict.bind(compress_pairs, out="bf16")

    rows = strict.finish().rows

    assert [(row.op, row.outcome, row.row_invariant) for row in rows] == [
        ("embedding.token_embedding", "reference", True),
        ("kv_cache.compress_pairs", "reference", True),
    ]


def test_composite_that_is_not_row_invariant_runs_as_steps_that_are() -> None:
    strict = binder(True, rms_norm_quantize=(FAST,), rms_norm=(STEADY,), quantize=(STEADY,))
    strict.bind(rms_norm_quantize, eps=1e-6, format="mxfp8")

    (row,) = strict.finish().rows

    assert (row.outcome, row.row_invariant) == ("decomposed", True)


def test_bound_op_states_the_workspace_of_its_site() -> None:
    def workspace(request: PlanRequest, site: Site) -> int:
        return request.rows * site.sizes["H"]

    one = binder(False, rms_norm=(Implementation(run, workspace=workspace),))
    stated = one.bind(rms_norm, eps=1e-6, sizes={"H": 5})
    silent = one.bind(quantize, format="mxfp8")

    assert stated.workspace is not None
    assert stated.workspace(PlanRequest(7, 1, 7, True)) == 35
    assert silent.workspace is None
    assert one.bound == [stated, silent]
