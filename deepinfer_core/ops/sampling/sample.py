"""Draw a token from log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from deepinfer_core.ops.cases import Case
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.draw_cases import one_hot_rows, random_rows, rows_without_weight, wrong_calls
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


@sample.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, purpose=DRAW, make=random_rows, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, purpose=DRAW, make=random_rows, required=True)
    yield Case("many_rows", T=200, V=37, purpose=DRAW, make=random_rows, required=True)
    yield Case("other_purposes", T=64, V=37, purpose=RESIDUAL, make=random_rows)
    yield Case("drafts", T=64, V=37, purpose=DRAFT + 4, make=random_rows, required=True)
    yield Case("one_hot", T=9, V=37, purpose=DRAW, make=one_hot_rows, required=True)
    yield Case("no_weight", T=3, V=37, purpose=DRAW, make=rows_without_weight, required=True)
    yield from wrong_calls()
