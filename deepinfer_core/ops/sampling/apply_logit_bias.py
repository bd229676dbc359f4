"""Add a few numbers to the logits of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("sampling.apply_logit_bias", tolerance=Tolerance.exact(), row_axis="T")
def apply_logit_bias(
    logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    ids: Annotated[Tensor, Shape("T", "_"), Dtypes("i32")],
    values: Annotated[Tensor, Shape("T", "_"), Dtypes("f32")],
) -> Tensor:
    """Return the logits with ``values[t, i]`` added at token ``ids[t, i]``.

    Sparse, because a request names a few tokens of a large vocabulary. A value of -inf forbids the token.

    Args:
        logits: Scores before temperature.
        ids: Tokens, distinct within a row; -1 marks an unused place.
        values: What to add; ignored at unused places.
    """
    used = ids >= 0
    amount = torch.where(used, values, 0.0)
    return logits.scatter_add(-1, ids.clamp(min=0).long(), amount)


def _random_bias(draw: Draw) -> dict[str, Tensor]:
    """Distinct tokens; places are unused at random, including the first token's."""
    ids = torch.stack([draw.distinct(draw.sizes["V"], 6) for _ in range(draw.sizes["T"])])
    unused = draw.integers(0, 3, "T", 6) == 0
    return {"ids": ids.masked_fill(unused, -1), "values": draw.normal("T", 6, dtype="f32", scale=20.0)}


def _forbid(draw: Draw) -> dict[str, Tensor]:
    values = torch.full((draw.sizes["T"], 2), -torch.inf)
    return {"ids": torch.tensor([[0, 3], [-1, -1], [5, -1]], dtype=torch.int32), "values": values}


def _nothing(draw: Draw) -> dict[str, Tensor]:
    return {"ids": draw.integers(0, 1, "T", 0), "values": draw.normal("T", 0, dtype="f32")}


@apply_logit_bias.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=4, V=129280, make=_random_bias, required=True, bench=True)
    yield Case("small", T=9, V=33, make=_random_bias, required=True)
    yield Case("forbid", T=3, V=8, make=_forbid, required=True)
    yield Case("no_bias", T=3, V=8, make=_nothing)
    yield ErrorCase("rows", T=2, V=8, make=_random_bias, stretch=("ids", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "long_ids",
        T=2,
        V=8,
        make=_random_bias,
        spoil=lambda a: a.update(ids=a["ids"].long()),
        raises=DtypeError,
        match="i64",
    )
