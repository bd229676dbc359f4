"""The most likely token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase, Make
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("sampling.greedy", tolerance=Tolerance.exact(), row_axis="T")
def greedy(logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")]) -> Tensor:
    """Return the id ``[T]`` int32 of the largest logit of each row, the lowest id among equals.

    +0 and -0 are equal. A row with NaN gives -1 (spec engine/05 section 5).
    """
    columns = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    best = logits == logits.amax(-1, keepdim=True)
    ids = torch.where(best, columns, logits.shape[-1]).amin(-1)
    return torch.where(best.any(-1), ids, -1)


def _ties(draw: Draw) -> dict[str, Tensor]:
    return {"logits": draw.integers(0, 4, "T", "V").float()}


def _given(*rows: tuple[float, ...]) -> Make:
    return lambda _: {"logits": torch.tensor(rows)}


@greedy.cases
def _cases() -> Iterator[Case]:
    yield Case("one_row", T=1, V=129280, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, required=True)
    yield Case("odd_vocabulary", T=9, V=257, required=True)
    yield Case("ties", T=16, V=300, make=_ties, required=True)
    yield Case("signed_zeros", T=1, V=3, make=_given((-1.0, -0.0, 0.0)))
    yield Case("masked", T=1, V=3, make=_given((-math.inf, -3e38, -math.inf)))
    yield Case("one_nan", T=2, V=3, make=_given((0.0, math.nan, 1.0), (0.0, 1.0, 0.0)))
    yield ErrorCase(
        "half", T=2, V=8, spoil=lambda a: a.update(logits=a["logits"].half()), raises=DtypeError, match="f16"
    )
    yield ErrorCase(
        "vector", T=2, V=8, spoil=lambda a: a.update(logits=a["logits"][0]), raises=ShapeError, match="logits"
    )
