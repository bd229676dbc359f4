"""Implementations that take more memory than they state, on a device that measures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
import torch

from deepinfer_core.backend.allocations import counted_peak
from deepinfer_core.backend.interface import Implementation, OpTable, PlanRequest, no_workspace
from deepinfer_core.conformance import suite_workspace
from deepinfer_core.conformance.check import Result
from deepinfer_core.conformance.implementations import NarrowedBackend
from deepinfer_core.conformance.runner import run_checks
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.reference.backend import CpuBackend
from deepinfer_core.reference.device import HostDevice


class MeasuredHost(HostDevice):
    """The host, with tensors counted."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        return counted_peak(work)


def results(run: Any, workspace: Any, device: HostDevice | None = None) -> list[Result]:
    """What the suite says of one implementation of ``norm.rms_norm``."""
    backend = NarrowedBackend(CpuBackend(), OpTable({rms_norm: (Implementation(run, workspace=workspace),)}))
    subject = Subject(backend=backend, device=device or MeasuredHost(), catalogue=(rms_norm,))
    return list(run_checks(suite_workspace.checks(subject), today=date(2026, 1, 1), accelerator="planted"))


def failed(found: list[Result]) -> set[str]:
    return {result.id.rsplit("/", 2)[-2] for result in found if result.status == "failed"}


def copies(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Takes the rows in float32 for itself, twice."""
    wide = x.float() if x.dtype != torch.float32 else x.clone()
    square = wide.square()
    scale = torch.rsqrt(square.mean(-1, keepdim=True) + eps)
    del square
    wide.mul_(scale).mul_(weight)
    return torch.empty_like(x).copy_(wide)


def two_copies(request: PlanRequest, site: Site) -> int:
    return request.rows * (8 * site.sizes["H"] + 64)


def test_statement_that_is_kept_passes() -> None:
    found = results(copies, two_copies)

    assert failed(found) == set()
    assert sum(result.status == "passed" for result in found) > 3


def test_memory_that_is_not_stated_is_caught() -> None:
    found = results(copies, no_workspace)

    assert "one_row" in failed(found)
    assert "many_rows" in failed(found)
    assert any("besides its results, but states 0" in result.detail for result in found)


def test_statement_that_shrinks_is_caught() -> None:
    found = results(copies, lambda request, site: (1 << 40) // max(request.rows, 1))

    assert failed(found) == {"growth"}
    assert any("the workspace shrinks when rows grow" in result.detail for result in found)


@pytest.mark.parametrize("wrong", [-1, 0.5, None])
def test_statement_that_is_no_number_of_bytes_is_caught(wrong: Any) -> None:
    assert "growth" in failed(results(copies, lambda request, site: wrong))


def test_nothing_stated_and_nothing_measured_are_told() -> None:
    silent = results(copies, None)
    unmeasured = results(copies, no_workspace, HostDevice())

    assert [(result.status, result.detail) for result in silent] == [
        ("refused", "no workspace is stated by norm.rms_norm (native)")
    ]
    assert unmeasured[0].detail == "this device does not measure what is allocated on it"
    assert failed(unmeasured) == set()
