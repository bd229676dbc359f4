"""Implementations that are wrong in the ways that have been seen in engines (spec dspark 7.3 and 9, B2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.fixed_point import DRAW_BITS, draw, fixed_point
from deepinfer_core.ops.sampling.random import ACCEPT, DRAW, RESIDUAL, random_words, uniform
from tests.law.toy import NO_TOKEN, Verifier


def verifier(
    *, coin: int = ACCEPT, replacement: int = RESIDUAL, subtracts: bool = True, tosses: bool = True
) -> Verifier:
    """``speculation.verify`` in other words, with places to be wrong; with the defaults it gives the same bits.

    Args:
        coin: Purpose of the coin's random number.
        replacement: Purpose of the replacement's.
        subtracts: Replacements come from ``max(p - q, 0)``; else from p.
        tosses: A draft that p likes less than q does has a chance; else it has none.
    """

    def judge(
        target: Tensor, drafts: Tensor, draft_logprobs: Tensor, seeds: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        has_draft = drafts > NO_TOKEN
        index = drafts.clamp(min=0).long().unsqueeze(-1)
        p, q = target.double().exp(), draft_logprobs.double().exp() * has_draft.unsqueeze(-1)
        u = uniform(random_words(seeds, positions, coin)) if tosses else 1.0
        chance_p, chance_q = p.gather(-1, index).squeeze(-1), q.gather(-1, index).squeeze(-1)
        accepted = has_draft & (chance_q > 0) & (u * chance_q < chance_p)
        weights = fixed_point(p - q if subtracts else p, DRAW_BITS)
        is_empty = weights.sum(-1, keepdim=True) < 1e-8 * 2.0**DRAW_BITS
        weights = torch.where(is_empty, fixed_point(p, DRAW_BITS), weights)
        tokens = draw(weights, seeds, positions, torch.where(has_draft, replacement, DRAW))
        return accepted, torch.where(accepted, drafts, tokens), torch.ones(len(drafts))

    return judge


def keyed_by_own_position(purpose: int) -> Callable[[Tensor, int], tuple[Tensor, int]]:
    """Random numbers of drafts that are those of something else at the same place."""
    return lambda anchor, index: (anchor + 1 + index, purpose)
