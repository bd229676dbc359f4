"""Which rows of logits can be sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("sampling.finite_rows", tolerance=Tolerance.exact(), row_axis="T")
def finite_rows(logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")]) -> Tensor:
    """Return True ``[T]`` for rows that define a distribution.

    False for a row with NaN or +inf, and for a row in which every logit is -inf (spec engine/05 section 6).
    """
    largest = logits.amax(-1)
    return largest.isfinite() & ~logits.isnan().any(-1)


def _bad_rows(draw: Draw) -> dict[str, Tensor]:
    logits = draw.normal("T", "V", dtype="f32")
    logits[1, 5] = torch.nan
    logits[2, 0] = torch.inf
    logits[3] = -torch.inf
    logits[4, 1:] = -torch.inf
    logits[5, 3], logits[5, 4] = torch.nan, torch.inf
    return {"logits": logits}


@finite_rows.cases
def _cases() -> Iterator[Case]:
    yield Case("all_finite", T=3, V=129280, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, required=True)
    yield Case("bad_rows", T=7, V=65, make=_bad_rows, required=True)
    yield ErrorCase(
        "half", T=2, V=8, spoil=lambda a: a.update(logits=a["logits"].half()), raises=DtypeError, match="f16"
    )
