"""Accept or replace drafts so that the output has the law of the target model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.fixed_point import DRAW_BITS, draw, fixed_point
from deepinfer_core.ops.sampling.random import ACCEPT, DRAW, RESIDUAL, random_words, uniform
from deepinfer_core.ops.tolerance import Tolerance

MIN_RESIDUAL = 1e-8
"""Below this mass target and draft are equal up to rounding, and a rejected row draws from the target itself."""

_TOLERANCE = Tolerance.elementwise("the expected acceptance is a sum; flags and tokens are exact", f32=(1e-4, 1e-5))


@op("speculation.verify", tolerance=_TOLERANCE, row_axis="T")
def verify(
    target: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    drafts: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    draft_logprobs: Annotated[Tensor | None, Shape("T", "V"), Dtypes("f32")],
    seeds: Annotated[Tensor, Shape("T"), Dtypes("i64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
) -> tuple[Tensor, Tensor, Tensor]:
    """Judge each row by rejection sampling; return accepted ``[T]`` bool, tokens ``[T]`` i32, expected ``[T]`` f32.

    With p the target's and q the draft's distribution, draft x is accepted when ``u q(x) < p(x)`` and ``q(x) > 0``;
    otherwise the token is drawn from ``max(p - q, 0)``. Whatever q is, the token has the law p. A greedy row
    (p one-hot) therefore accepts exactly the arg-max and is replaced by it. Coin, replacement and fresh draw use
    separate random numbers (:mod:`deepinfer_core.ops.sampling.random`); tokens are drawn as in ``sampling.sample``.

    Args:
        target: Log-probabilities of the target, processed as the request asks.
        drafts: Drafted token of each row. -1 marks a row without a draft: it is never accepted, and its token is
            that of ``sampling.sample`` with purpose ``DRAW``.
        draft_logprobs: The distribution that the drafts were drawn from; None when they were chosen without
            chance (one-hot).
        seeds: Bit pattern of each request's uint64.
        positions: Index in the sequence of the token that the row decides.

    Returns:
        Whether the draft was accepted; the row's token, the draft where accepted; the chance of acceptance
        ``sum min(p, q)``, 1 in rows without a draft. Only rows up to the first that is not accepted count.

    Source: spec dspark 3.1 and engine/04 section 3, with the exact residual.
    """
    has_draft = drafts >= 0
    index = drafts.clamp(min=0).long().unsqueeze(-1)
    p = target.double().exp()
    one_hot = torch.zeros_like(p).scatter(-1, index, 1.0)
    q = (one_hot if draft_logprobs is None else draft_logprobs.double().exp()) * has_draft.unsqueeze(-1)

    coin = uniform(random_words(seeds, positions, ACCEPT))
    chance_p, chance_q = p.gather(-1, index).squeeze(-1), q.gather(-1, index).squeeze(-1)
    accepted = has_draft & (chance_q > 0) & (coin * chance_q < chance_p)

    residual = fixed_point(p - q, DRAW_BITS)
    is_empty = residual.sum(-1, keepdim=True) < MIN_RESIDUAL * 2.0**DRAW_BITS
    weights = torch.where(is_empty, fixed_point(p, DRAW_BITS), residual)
    replacement = draw(weights, seeds, positions, torch.where(has_draft, RESIDUAL, DRAW))
    expected = torch.where(has_draft, torch.minimum(p, q).sum(-1), 1.0)
    return accepted, torch.where(accepted, drafts, replacement), expected.float()


def _random(source: Draw) -> dict[str, Tensor]:
    target = source.normal("T", "V", dtype="f32", scale=2.0)
    draft = target + source.normal("T", "V", dtype="f32")
    return {
        "target": target.log_softmax(-1),
        "drafts": source.integers(-1, source.sizes["V"], "T"),
        "draft_logprobs": draft.log_softmax(-1),
        "seeds": source.integers(-(2**63), 2**63 - 1, "T", dtype="i64"),
        "positions": source.integers(0, 2**20, "T"),
    }


def _likely(source: Draw) -> dict[str, Tensor]:
    """Drafts that the draft module would make: its most likely tokens."""
    made = _random(source)
    return {**made, "drafts": made["draft_logprobs"].argmax(-1).int()}


def _equal(source: Draw) -> dict[str, Tensor]:
    made = _likely(source)
    return {**made, "draft_logprobs": made["target"].clone()}


def _one_hot(source: Draw) -> dict[str, Any]:
    return {**_likely(source), "draft_logprobs": None}


def _greedy(source: Draw) -> dict[str, Tensor]:
    made = _likely(source)
    best = made["target"].argmax(-1, keepdim=True)
    return {**made, "target": torch.full_like(made["target"], -torch.inf).scatter(-1, best, 0.0)}


@verify.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, make=_likely, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, make=_random, required=True)
    yield Case("any_draft", T=96, V=9, make=_random, required=True)
    yield Case("likely_drafts", T=64, V=37, make=_likely, required=True)
    yield Case("draft_equals_target", T=64, V=37, make=_equal, required=True)
    yield Case("one_hot_drafts", T=64, V=37, make=_one_hot, required=True)
    yield Case("greedy_target", T=64, V=37, make=_greedy, required=True)
    yield ErrorCase("drafts", T=2, V=8, make=_random, stretch=("drafts", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "half",
        T=2,
        V=8,
        make=_random,
        spoil=lambda a: a.update(target=a["target"].half()),
        raises=DtypeError,
        match="f16",
    )
