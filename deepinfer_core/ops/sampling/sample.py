"""Draw a token from log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.fixed_point import draw, draw_weights
from deepinfer_core.ops.sampling.random import DRAFT, DRAW, RESIDUAL
from deepinfer_core.ops.tolerance import Tolerance


@op("sampling.sample", tolerance=Tolerance.exact(), row_axis="T")
def sample(
    logprobs: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    seeds: Annotated[Tensor, Shape("T"), Dtypes("i64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    purpose: int,
) -> Tensor:
    """Return one token ``[T]`` int32 per row, drawn with the chances given.

    Defined bit for bit, so that all devices draw the same token from the same distribution: weights are
    ``floor(exp(logprob) * 2^31)``, random words are Philox4x32-10 of (seed; position, purpose, 0, 0), and a uniform
    integer below the sum of the weights selects the first token, in order of ids, whose cumulative weight
    exceeds it. A row's token does not depend on the batch; a token of weight 0 is never drawn; a row of
    zero weight (all -inf, NaN) gives -1 (spec engine/05 section 8).

    Args:
        logprobs: Normalised; from ``sampling.process_logits``.
        seeds: Bit pattern of each request's uint64.
        positions: Index in the sequence of the token that is drawn.
        purpose: Name space of the draw: ``deepinfer_core.ops.sampling.random.DRAW`` and its neighbours.
    """
    return draw(draw_weights(logprobs), seeds, positions, purpose)


def _random(source: Draw) -> dict[str, Tensor]:
    return {
        "logprobs": source.normal("T", "V", dtype="f32", scale=3.0).log_softmax(-1),
        "seeds": source.integers(-(2**63), 2**63 - 1, "T", dtype="i64"),
        "positions": source.integers(0, 2**20, "T"),
    }


def _one_hot(source: Draw) -> dict[str, Tensor]:
    logprobs = torch.full((source.sizes["T"], source.sizes["V"]), -torch.inf)
    logprobs.scatter_(1, source.integers(0, source.sizes["V"], "T", 1, dtype="i64"), 0.0)
    return {**_random(source), "logprobs": logprobs}


def _no_weight(source: Draw) -> dict[str, Tensor]:
    made = _random(source)
    made["logprobs"][0] = -torch.inf
    made["logprobs"][1] = torch.nan
    return made


@sample.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, purpose=DRAW, make=_random, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, purpose=DRAW, make=_random, required=True)
    yield Case("many_rows", T=200, V=37, purpose=DRAW, make=_random, required=True)
    yield Case("other_purposes", T=64, V=37, purpose=RESIDUAL, make=_random)
    yield Case("drafts", T=64, V=37, purpose=DRAFT + 4, make=_random, required=True)
    yield Case("one_hot", T=9, V=37, purpose=DRAW, make=_one_hot, required=True)
    yield Case("no_weight", T=3, V=37, purpose=DRAW, make=_no_weight, required=True)
    yield ErrorCase(
        "seeds", T=2, V=8, purpose=DRAW, make=_random, stretch=("seeds", "T"), raises=ShapeError, match="T=3"
    )
    yield ErrorCase(
        "int_seeds",
        T=2,
        V=8,
        purpose=DRAW,
        make=_random,
        spoil=lambda a: a.update(seeds=a["seeds"].int()),
        raises=DtypeError,
        match="i32",
    )
