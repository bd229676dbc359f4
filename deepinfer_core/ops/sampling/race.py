"""Draw a token from log-probabilities so that similar distributions draw the same token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.ops.cases import Case, Draw
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.arrivals import race_draw
from deepinfer_core.ops.sampling.draw_cases import one_hot_rows, random_rows, rows_without_weight, wrong_calls
from deepinfer_core.ops.sampling.fixed_point import draw_weights
from deepinfer_core.ops.sampling.random import DRAFT, DRAW, RESIDUAL
from deepinfer_core.ops.tolerance import Tolerance


@op("sampling.race", tolerance=Tolerance.exact(), row_axis="T")
def race(
    logprobs: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    seeds: Annotated[Tensor, Shape("T"), Dtypes("i64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    purpose: int,
) -> Tensor:
    """Return one token ``[T]`` int32 per row, the winner of an exponential race between the tokens.

    The law is that of ``sampling.sample``; the difference is how draws from different distributions hang together.
    With the same numbers, p and q draw the same token with chance ``(1 - TV) / (1 + TV)`` or more, where TV is their
    distance ``sum |p - q| / 2``. A draft that races with the numbers of its token is that often the token itself; the
    inverse CDF of ``sampling.sample`` misses this by far where the vocabulary is large.

    Defined bit for bit, so that all devices draw the same token from the same distribution. Weights are
    ``w = floor(exp(logprob) * 2^31)`` as in ``sampling.sample``. Token v has 62 random bits of Philox4x32-10 of
    (seed; position, purpose, v // 2, 1): the upper 31 bits of words 0 and 1 for even v, of words 2 and 3 for odd v,
    the first above the second. ``x = (bits + 1/2) / 2^62`` is uniform and ``E = -log(1 - x)`` exponential, taken by
    the float64 operations of :func:`deepinfer_core.ops.sampling.arrivals.exponential`, none of them fused, with a
    relative error below 2^-49 for every x. The smallest float64 quotient ``E / w`` wins, the lowest id among equals.
    A row's token does not depend on the batch; a token of weight 0 is never drawn; a row of zero weight (all -inf,
    NaN) gives -1. Draws with another seed, position or purpose are independent, and independent of every
    ``sampling.sample``.

    Args:
        logprobs: Normalised; from ``sampling.process_logits``.
        seeds: Bit pattern of each request's uint64.
        positions: Index in the sequence of the token that is drawn.
        purpose: Name space of the draw: ``deepinfer_core.ops.sampling.random.DRAW`` and its neighbours.
    """
    return race_draw(draw_weights(logprobs), seeds, positions, purpose)


def _even(source: Draw) -> dict[str, Tensor]:
    logprobs = torch.zeros(source.sizes["T"], source.sizes["V"]).log_softmax(-1)
    return {**random_rows(source), "logprobs": logprobs}


def _filtered(source: Draw) -> dict[str, Tensor]:
    made = random_rows(source)
    logprobs = made["logprobs"]
    kept = logprobs.topk(min(50, logprobs.shape[-1]), -1)
    made["logprobs"] = torch.full_like(logprobs, -torch.inf).scatter_(1, kept.indices, kept.values.log_softmax(-1))
    return made


def _rare(source: Draw) -> dict[str, Tensor]:
    """Weights from 0 to 4: here rounding decides who may win at all."""
    low = source.uniform("T", "V", low=-22.5, high=-20.1)
    return {**random_rows(source), "logprobs": low}


@race.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, purpose=DRAW, make=random_rows, required=True, bench=True)
    yield Case("filtered", T=3, V=16385, purpose=DRAW, make=_filtered, required=True)
    yield Case("no_rows", T=0, V=64, purpose=DRAW, make=random_rows, required=True)
    yield Case("many_rows", T=70, V=37, purpose=DRAW, make=random_rows, required=True)
    yield Case("other_purposes", T=16, V=38, purpose=RESIDUAL, make=random_rows)
    yield Case("drafts", T=16, V=37, purpose=DRAFT + 4, make=random_rows, required=True)
    yield Case("one_token", T=3, V=1, purpose=DRAW, make=random_rows, required=True)
    yield Case("one_hot", T=9, V=37, purpose=DRAW, make=one_hot_rows, required=True)
    yield Case("equal_weights", T=16, V=4099, purpose=DRAW, make=_even, required=True)
    yield Case("rare_tokens", T=16, V=4099, purpose=DRAW, make=_rare, required=True)
    yield Case("no_weight", T=3, V=37, purpose=DRAW, make=rows_without_weight, required=True)
    yield from wrong_calls()
