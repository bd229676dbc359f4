"""Stages of sampling; definitions are at the ops. Nothing is sorted that no row asks for."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.fixed_point import SUM_BITS, fixed_point, log_sum


def run_apply_penalties(
    logits: Tensor, output_counts: Tensor, in_prompt: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """``sampling.apply_penalties``, element by element."""
    in_output = output_counts > 0
    factor = repetition[:, None].expand_as(logits)
    scaled = torch.where(logits > 0, logits / factor, logits * factor)
    result = torch.where(in_prompt | in_output, scaled, logits)
    result -= frequency[:, None] * output_counts
    return result.sub_(presence[:, None] * in_output)


def run_process_logits(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """``sampling.process_logits``: sums are integers, so that a row's bits are its own."""
    drawn = (temperature > 0)[:, None]
    best, best_ids = logits.max(-1, keepdim=True)
    scores = (logits.double() - best) / torch.where(drawn, temperature[:, None], 1.0).double()
    weights = fixed_point(scores.exp(), SUM_BITS)
    kept = torch.ones_like(logits, dtype=torch.bool)
    limits = _active_limits(top_k, top_p, logits.shape[-1])
    if limits is not None:
        kept = _kept_best(logits, weights, *limits)
        weights = weights.masked_fill(~kept, 0)
    if min_p is not None:
        kept = kept & (weights.double() >= min_p.double()[:, None] * 2.0**SUM_BITS)
        weights = weights.masked_fill(~kept, 0)
    logprobs = (scores.masked_fill(~kept, -torch.inf) - log_sum(weights)).float()
    return torch.where(drawn, logprobs, _only(best, best_ids, logits))


def _active_limits(
    top_k: Tensor | None, top_p: Tensor | None, vocab_size: int
) -> tuple[Tensor | None, Tensor | None] | None:
    """The filters that cut something from some row; None when none does."""
    if top_k is not None and not bool(((top_k > 0) & (top_k < vocab_size)).any()):
        top_k = None
    if top_p is not None and not bool((top_p < 1).any()):
        top_p = None
    return None if top_k is None and top_p is None else (top_k, top_p)


def _kept_best(logits: Tensor, weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """True for the tokens that top-k and then top-p keep: the first ones, best first, lower ids first among equals."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    ranked = weights.gather(-1, order)
    kept = torch.ones_like(order, dtype=torch.bool)
    if top_k is not None:
        most = torch.where(top_k > 0, top_k, logits.shape[-1])
        kept = torch.arange(logits.shape[-1], device=logits.device) < most[:, None]
        ranked = ranked.masked_fill(~kept, 0)
    if top_p is not None:
        before = ranked.cumsum(-1) - ranked
        kept = kept & (before.double() <= top_p.double()[:, None] * ranked.sum(-1, keepdim=True))
    return torch.empty_like(kept).scatter_(-1, order, kept)


def _only(best: Tensor, best_ids: Tensor, logits: Tensor) -> Tensor:
    """Log-probabilities that leave the best token alone, the lowest id among equals; NaN in rows without one."""
    refused = best.isnan() | best.isinf()
    first = (logits == best).int().argmax(-1, keepdim=True)
    result = torch.full_like(logits, -torch.inf).scatter_(-1, torch.where(refused, best_ids, first), 0.0)
    return result.masked_fill_(refused, torch.nan)


def run_top_logprobs(logits: Tensor, ids: Tensor, *, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``sampling.top_logprobs``; the vocabulary is sorted only for those who want the best tokens."""
    shifted = logits.double() - logits.amax(-1, keepdim=True)
    logprobs = (shifted - log_sum(fixed_point(shifted.exp(), SUM_BITS))).float()
    chosen = ids.clamp(min=0).long()[:, None]
    best = logits.sort(dim=-1, descending=True, stable=True).indices[:, :n] if n else chosen[:, :0]
    value = logits.gather(-1, chosen)
    columns = torch.arange(logits.shape[-1], device=logits.device)
    ahead = (logits > value) | ((logits == value) & (columns < chosen))
    ranks = ahead.sum(-1) + 1
    return logprobs.gather(-1, chosen)[:, 0], ranks.int(), logprobs.gather(-1, best), best.int()
