"""Compares a trace with a golden file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deepinfer_core.engine.diff import Comparison, TraceDifference, compare_traces
from tests.golden_agreement.golden_files import GoldenFile

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-5
"""Largest difference in units of a tensor's largest entry; float32 noise between roundings stays below 4e-6."""

NUM_TENSORS = {"tiny": 74, "mini_b": 65}
"""Tensors of a golden file at least: a file that lost some, or a comparison that skips some, does not pass."""


def compare_with(file: GoldenFile, trace: Mapping[str, Tensor]) -> TraceDifference:
    """Every tensor of the file's float32 variant, with the file's tolerances."""
    golden = file.tensors("f32")
    found = compare_traces(trace, golden, lambda name: file.drafts if name.startswith("draft") else TOLERANCE)
    assert found.only_right == ()
    assert len(found.comparisons) >= NUM_TENSORS[file.model]
    return found


def disagreeing(found: TraceDifference) -> list[Comparison]:
    """Tensors out of bounds, or with another choice than the golden one, be it among equal scores; in model order."""
    return [c for c in found.comparisons if c.first is not None or c.num_ties]


def problems(found: TraceDifference) -> list[str]:
    """The same in words."""
    return [
        f"{c.name}: {c.error:.2g} (allowed {c.allowed:g}), {c.num_ties} ties, first at {c.first}"
        for c in disagreeing(found)
    ]
