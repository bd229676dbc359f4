"""The 16-bit arithmetics, measured with the distance between the golden variants.

In 16 bits two right implementations part as far as either parts from float32, because every rounding is noise. So the
question is not how small an error is but whether it is of that size. Errors are mean squares over the positions that
a file keeps, in units of the distance between its golden variants; the median over all prompts of the
trained model counts, because on a single prompt they may be many times larger, when an expert or a selected entry is
another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import pytest
import torch

from tests.golden_agreement.golden_files import FILES, TEXTS
from tests.golden_agreement.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

FACTORS = {"final_hidden": 1.5, "draft_hidden": 1.5, "logits": 1.5}
"""Root mean square error allowed in units of the distance between the golden variant and golden float32."""

GOLDEN_VARIANT = {"bf16": "bf16", "bf16_a8": "bf16_a8", "released": "bf16_a8"}
"""Our arithmetic -> the golden one that is nearest."""


@dataclass
class Measured:
    """What one arithmetic does to all prompts.

    Attributes:
        ratios: By tensor, each prompt's squared error in units of the squared distance between the golden variants.
        num_other_argmax: Positions with another argmax than the golden variant has.
        num_golden_argmax: The same for golden float32.
        other_texts: Prompts of the trained kind with another greedy continuation.
    """

    ratios: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FACTORS})
    num_other_argmax: int = 0
    num_golden_argmax: int = 0
    other_texts: list[str] = field(default_factory=list)

    def add(self, mine: Mapping[str, Tensor], golden: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> None:
        for name in FACTORS:
            last = mine[name][-len(golden[name]) :]
            distance = square(wide[name], golden[name])
            self.ratios[name].append(square(last, golden[name]) / distance)
        self.num_other_argmax += int((mine["argmax"] != golden["argmax"]).sum())
        self.num_golden_argmax += int((wide["argmax"] != golden["argmax"]).sum())


def square(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).square().sum())


@pytest.fixture(scope="module", params=sorted(GOLDEN_VARIANT))
def measured(request: pytest.FixtureRequest, workshop: Workshop) -> Measured:
    found = Measured()
    for file in (file for file in FILES if file.model == "tiny"):
        mine, golden = workshop.traced(file, request.param), file.tensors(GOLDEN_VARIANT[request.param])
        found.add(mine, golden, file.tensors("f32"))
        if file in TEXTS and not torch.equal(mine["greedy"], golden["greedy"]):
            found.other_texts.append(file.id)
    return found


@pytest.mark.parametrize("name", FACTORS)
def test_error_is_of_the_size_of_the_distance_between_variants(measured: Measured, name: str) -> None:
    assert 0 < median(measured.ratios[name]) <= FACTORS[name] ** 2


def test_argmax_differs_no_more_often_than_between_variants(measured: Measured) -> None:
    assert measured.num_other_argmax <= 1.5 * measured.num_golden_argmax


def test_greedy_texts_are_the_golden_ones(measured: Measured) -> None:
    assert measured.other_texts == []
