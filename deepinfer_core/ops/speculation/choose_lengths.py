"""Share a budget of verification rows among sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("speculation.choose_lengths", tolerance=Tolerance.exact())
def choose_lengths(
    confidence: Annotated[Tensor, Shape("B", "_"), Dtypes("f32")],
    limits: Annotated[Tensor, Shape("B"), Dtypes("i32")],
    budget: Annotated[Tensor, Shape(1), Dtypes("i32")],
) -> Tensor:
    """Return how many drafts of each sequence to verify, ``[B]`` int32.

    The chance that the first j drafts of a sequence all stand is the product of their confidences, multiplied
    in order. The ``budget`` likeliest (sequence, j) are taken; among equals the smaller j, then the smaller sequence.
    This order takes drafts of a sequence only from the front, which keeps the output's law (spec dspark 5.4
    and 7.2). Fewer are taken when the limits leave fewer.

    Args:
        confidence: Estimates in [0, 1] from ``speculation.confidence``; 0 for a sequence without drafts.
        limits: Drafts of each sequence that may be verified at most.
        budget: Drafts to verify in all; it must not depend on ``confidence``.
    """
    num_sequences, num_drafts = confidence.shape
    step = torch.arange(num_drafts, device=confidence.device)
    eligible = step < limits.unsqueeze(-1)
    survival = confidence.cumprod(-1).masked_fill(~eligible, -torch.inf)
    by_step = survival.t().reshape(-1)
    order = by_step.sort(descending=True, stable=True).indices
    place = torch.empty_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))
    taken = (place < budget) & eligible.t().reshape(-1)
    return taken.reshape(num_drafts, num_sequences).sum(0).int()


def _random(draw: Draw) -> dict[str, Tensor]:
    return {
        "confidence": draw.uniform("B", 5),
        "limits": draw.integers(0, 7, "B"),
        "budget": torch.tensor([2 * draw.sizes["B"]], dtype=torch.int32),
    }


def _certain(draw: Draw) -> dict[str, Tensor]:
    """Saturated confidences: every comparison is a tie."""
    return {**_random(draw), "confidence": torch.ones(draw.sizes["B"], 5)}


def _plenty(draw: Draw) -> dict[str, Tensor]:
    return {**_random(draw), "budget": torch.tensor([1000], dtype=torch.int32)}


@choose_lengths.cases
def _cases() -> Iterator[Case]:
    yield Case("many", B=64, make=_random, required=True, bench=True)
    yield Case("no_sequences", B=0, make=_random, required=True)
    yield Case("ties", B=7, make=_certain, required=True)
    yield Case("more_than_enough", B=7, make=_plenty, required=True)
    yield ErrorCase("limits", B=2, make=_random, stretch=("limits", "B"), raises=ShapeError, match="B=3")
    yield ErrorCase(
        "long_budget",
        B=2,
        make=_random,
        spoil=lambda a: a.update(budget=a["budget"].long()),
        raises=DtypeError,
        match="i64",
    )
