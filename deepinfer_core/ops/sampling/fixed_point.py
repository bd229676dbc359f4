"""Probabilities as integers, so that every sum that decides a result is exact and has no order."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.random import random_words, uniform_below

DRAW_BITS = 31
"""A weight to draw by is ``floor(p * 2^31)``: a token below 2^-31 is never drawn."""
SUM_BITS = 40
"""Resolution of sums of exponentials relative to the largest; sums of 2^22 of them fit in int64."""


def fixed_point(x: Tensor, bits: int) -> Tensor:
    """``floor(x * 2^bits)`` as int64 for ``x`` in [0, 1]; NaN counts as 0 and more than 1 as 1."""
    return (x.double().nan_to_num(0.0).clamp(0.0, 1.0) * 2.0**bits).floor().long()


def draw_weights(logprobs: Tensor) -> Tensor:
    """Weights ``floor(exp(logprob) * 2^31)``; the exponential is taken in float64."""
    return fixed_point(logprobs.double().exp(), DRAW_BITS)


def draw(weights: Tensor, seeds: Tensor, positions: Tensor, purpose: Tensor | int) -> Tensor:
    """Draw one column per row with chances proportional to the weights: the CDF in order of ids is inverted.

    Args:
        weights: ``[T, V]`` int64, not negative, with row sums below 2^32.
        seeds: As in :func:`~deepinfer_core.ops.sampling.random.random_words`.
        positions: Likewise.
        purpose: Likewise.

    Returns:
        ``[T]`` int32: the first id whose cumulative weight exceeds the random number; -1 where all weights are 0.
    """
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = uniform_below(total, random_words(seeds, positions, purpose))
    ids = (cumulative <= target.unsqueeze(-1)).sum(-1)
    return torch.where(total > 0, ids, -1).int()


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities ``[T, V]`` float64, with a sum that does not depend on the order of summation."""
    shifted = logits.double() - logits.amax(-1, keepdim=True)
    return shifted - log_sum(fixed_point(shifted.exp(), SUM_BITS))


def log_sum(exponentials: Tensor) -> Tensor:
    """Log of the row sums ``[T, 1]`` of fixed-point exponentials."""
    return (exponentials.sum(-1, keepdim=True).double() * 2.0**-SUM_BITS).log()
