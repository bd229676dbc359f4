"""Correct draft logits by the token before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide


@op("speculation.markov_logits", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("embedding", "head"))
def markov_logits(
    base: Annotated[Tensor, Shape("T", "V"), Dtypes("f32", "f64")],
    previous: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    embedding: Annotated[Tensor, Shape("V", "I"), Dtypes("bf16", "f32")],
    head: Annotated[Tensor, Shape("V", "I"), Dtypes("bf16", "f32")],
) -> Tensor:
    """Return ``base + embedding[previous] . head^T``, products accumulated wide and added before any rounding.

    Args:
        base: Logits of the draft rows from the shared vocabulary head.
        previous: The token before the one that is drafted: the sampled token, then the drafts one by one.
        embedding: Low-rank table, one row per token.
        head: Low-rank output map, one row per token.

    Source: spec model/09 section 4.
    """
    rows = wide(embedding[previous.long()]).to(base.dtype)
    return base + rows @ wide(head).to(base.dtype).t()


def _random(draw: Draw) -> dict[str, Tensor]:
    weight = "f32" if draw.dtype == "f64" else draw.dtype
    return {
        "base": draw.normal("T", "V", dtype="f64" if draw.dtype == "f64" else "f32"),
        "previous": draw.integers(0, draw.sizes["V"], "T"),
        "embedding": draw.normal("V", "I", dtype=weight),
        "head": draw.normal("V", "I", dtype=weight, scale=draw.sizes["I"] ** -0.5),
    }


@markov_logits.cases
def _cases() -> Iterator[Case]:
    yield Case("released_rank", T=4, V=4096, I=256, make=_random, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, I=16, make=_random, required=True)
    yield Case("many_rows", T=65, V=129, I=32, make=_random, required=True)
    yield Case("f32_weights", T=3, V=65, I=16, dtype="f32", make=_random)
    yield Case("f64", T=3, V=65, I=16, dtype="f64", make=_random)
    yield ErrorCase("rank", T=2, V=8, I=4, make=_random, stretch=("head", "I"), raises=ShapeError, match="I=5")
    yield ErrorCase(
        "long_ids",
        T=2,
        V=8,
        I=4,
        make=_random,
        spoil=lambda a: a.update(previous=a["previous"].long()),
        raises=DtypeError,
        match="i64",
    )
