"""From logits to the log-probabilities that a token is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.fixed_point import SUM_BITS, fixed_point, log_sum
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.tolerance import Tolerance

_TOLERANCE = Tolerance.elementwise("exponential and logarithm differ in the last bits", f32=(1e-5, 1e-5))


@op("sampling.process_logits", tolerance=_TOLERANCE, row_axis="T")
def process_logits(
    logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    temperature: Annotated[Tensor, Shape("T"), Dtypes("f32")],
    top_k: Annotated[Tensor | None, Shape("T"), Dtypes("i32")] = None,
    top_p: Annotated[Tensor | None, Shape("T"), Dtypes("f32")] = None,
    min_p: Annotated[Tensor | None, Shape("T"), Dtypes("f32")] = None,
) -> Tensor:
    """Return the log-probabilities ``[T, V]`` f32 of the filtered distribution, -inf for removed tokens.

    In this order, each on what the step before it left: divide by the temperature; keep the ``top_k`` best; of
    these, best first, keep those that come after a total of at most ``top_p`` of the remaining mass; remove
    tokens less likely than ``min_p`` times the best. Equal logits count the lower id first. (DeepInfer 0.1.0
    takes top-p of the whole distribution and top-k of its survivors; vLLM removes by min-p first.)

    Exponentials are summed as fixed-point integers relative to the best token, so a row's bits depend
    neither on the order of summation nor on the other rows; a filter that is off or absent changes no bit. A row
    refused by ``sampling.finite_rows`` gives NaN and leaves the others alone (spec engine/05 sections 3 and 8).

    Args:
        logits: Scores after bias, masks and penalties; -inf marks a forbidden token.
        temperature: 0 (or less) makes the row one-hot on the result of ``sampling.greedy``.
        top_k: Tokens to keep; 0 or less is off.
        top_p: Mass to keep, in (0, 1]; 1 is off.
        min_p: Least chance relative to the best token, in [0, 1]; 0 is off.
    """
    sampled = (temperature > 0).unsqueeze(-1)
    divisor = torch.where(sampled, temperature.unsqueeze(-1), 1.0).double()
    scores = (logits.double() - logits.amax(-1, keepdim=True)) / divisor
    weights = fixed_point(scores.exp(), SUM_BITS)
    if top_k is not None or top_p is not None:
        kept = _best_tokens(logits, weights, top_k, top_p)
        weights, scores = torch.where(kept, weights, 0), scores.masked_fill(~kept, -torch.inf)
    if min_p is not None:
        kept = weights.double() >= min_p.double().unsqueeze(-1) * 2.0**SUM_BITS
        weights, scores = torch.where(kept, weights, 0), scores.masked_fill(~kept, -torch.inf)
    logprobs = (scores - log_sum(weights)).float()
    return torch.where(sampled, logprobs, _one_hot(logits, greedy(logits)))


def _best_tokens(logits: Tensor, weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """True for the tokens that top-k and then top-p keep: a prefix of the tokens, best first."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    kept = torch.ones_like(order, dtype=torch.bool)
    ranked = weights.gather(-1, order)
    if top_k is not None:
        limit = torch.where(top_k > 0, top_k, logits.shape[-1]).unsqueeze(-1)
        kept = torch.arange(logits.shape[-1], device=logits.device) < limit
        ranked = torch.where(kept, ranked, 0)
    if top_p is not None:
        before = ranked.cumsum(-1) - ranked
        kept = kept & (before.double() <= top_p.double().unsqueeze(-1) * ranked.sum(-1, keepdim=True))
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _one_hot(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities that leave only one token; NaN where there is none (id -1)."""
    columns = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    chosen = ids.unsqueeze(-1)
    return torch.where(columns == chosen, 0.0, torch.where(chosen < 0, torch.nan, -torch.inf))


def _temperatures(draw: Draw) -> dict[str, Tensor]:
    return {"temperature": draw.uniform("T", low=0.3, high=1.5)}


def _all_filters(draw: Draw) -> dict[str, Tensor]:
    return {
        "temperature": draw.uniform("T", low=0.3, high=1.5) * draw.integers(0, 4, "T").clamp(max=1),
        "top_k": draw.integers(-1, 12, "T"),
        "top_p": draw.uniform("T", low=0.1, high=1.1).clamp(max=1.0),
        "min_p": draw.uniform("T", low=-0.1, high=0.2).clamp(min=0.0),
    }


def _ties(draw: Draw) -> dict[str, Tensor]:
    """Few distinct logits, so that every filter cuts through a tie."""
    return {**_all_filters(draw), "logits": draw.integers(0, 3, "T", "V").float()}


def _masked_and_huge(draw: Draw) -> dict[str, Tensor]:
    logits = draw.normal("T", "V", dtype="f32", scale=2e4).clamp(-6e4, 6e4)
    logits[:, ::3] = -torch.inf
    return {"logits": logits, "temperature": torch.tensor([0.0, 1e-5, 1e-4, 1.0])}


def _refused_rows(draw: Draw) -> dict[str, Tensor]:
    logits = draw.normal("T", "V", dtype="f32")
    logits[1, 2], logits[2] = torch.nan, -torch.inf
    return {"logits": logits, "temperature": torch.ones(draw.sizes["T"])}


def _far_apart(draw: Draw) -> dict[str, Tensor]:
    """Rows without filters whose best tokens, ties and NaN lie far apart, for kernels that cut a row."""
    logits = draw.normal("T", "V", dtype="f32", scale=3.0)
    logits[1, 3000] = logits[1, 16000] = 50.0
    logits[2, :-1] = -torch.inf
    logits[3, -1] = torch.nan
    logits[4] = -torch.inf
    return {"logits": logits, "temperature": torch.tensor([0.7, 0.0, 0.0, 1.3, 1.0, 1e-3])}


@process_logits.cases
def _cases() -> Iterator[Case]:
    yield Case("temperature_only", T=2, V=129280, make=_temperatures, required=True, bench=True)
    yield Case("all_filters", T=2, V=129280, make=_all_filters, required=True, bench=True)
    yield Case("far_apart", T=6, V=16385, make=_far_apart, required=True)
    yield Case("no_rows", T=0, V=64, make=_all_filters, required=True)
    yield Case("many_rows", T=33, V=67, make=_all_filters, required=True)
    yield Case("ties", T=24, V=40, make=_ties, required=True)
    yield Case("one_token", T=3, V=1, make=_all_filters)
    yield Case("masked_and_huge", T=4, V=50, make=_masked_and_huge, required=True)
    yield Case("refused_rows", T=4, V=16, make=_refused_rows, required=True)
    yield ErrorCase("rows", T=2, V=8, make=_temperatures, stretch=("temperature", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "long_top_k",
        T=2,
        V=8,
        make=_all_filters,
        spoil=lambda a: a.update(top_k=a["top_k"].long()),
        raises=DtypeError,
        match="i64",
    )
