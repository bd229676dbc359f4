"""An exponential race between the tokens of a row, defined bit for bit (Gumbel-max in other words).

Every token ``v`` arrives at the time ``E_v / w_v``, where ``E_v`` is exponential and depends on seed, position, purpose
and ``v`` alone; the first to arrive is drawn, token ``v`` with chance ``w_v / sum(w)``. Two distributions that
race with the same numbers draw the same token with chance (1 - TV) / (1 + TV) or more, whatever the order of ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.random import counted_words

SERIES = tuple(1.0 / (2 * number + 1) for number in range(10))
"""``atanh(s) / s`` in powers of ``s^2``: for ``|s| <= 0.1717`` what is left out is below 2^-55."""
LOWEST_MANTISSA = 181 / 256
"""Logarithms are taken of numbers from here to twice this, about ``sqrt(1/2)`` to ``sqrt(2)``."""
LN2 = 0.6931471805599453
RACE = 1
"""Counter word 3 of a race; the draws of one number per row have 0 there."""

_AT_ONCE = 1 << 18
"""Tokens that are hashed together, for the sake of memory."""


def race_bits(seeds: Tensor, positions: Tensor, purpose: int, num_tokens: int) -> Tensor:
    """62 random bits ``[T, num_tokens]`` int64 for each token of each row.

    Tokens ``2i`` and ``2i + 1`` share the Philox call with counter (position, purpose, i, 1); the even one takes words
    0 (high) and 1 (low), the odd one words 2 and 3, the upper 31 bits of each.
    """
    pairs = torch.arange((num_tokens + 1) // 2, device=positions.device)
    words = counted_words(seeds.unsqueeze(-1), positions.unsqueeze(-1), purpose, pairs, RACE)
    even = (words[0] >> 1 << 31) | (words[1] >> 1)
    odd = (words[2] >> 1 << 31) | (words[3] >> 1)
    return torch.stack((even, odd), -1).flatten(-2)[:, :num_tokens]


def exponential(bits: Tensor) -> Tensor:
    """``-log(1 - x)`` float64 for ``x = (bits + 1/2) / 2^62``: exponential numbers from 2^-63 to 43.7, never 0.

    Every operation is one IEEE operation in float64, rounded by itself: a product must not be fused with
    the addition that takes it. With ``1 - x = m * 2^-n`` and ``m`` about 1 the logarithm is ``n ln 2 + 2 atanh(s)``,
    ``s = (1 - m) / (1 + m)``. For ``n = 0`` the numerator is ``x`` itself, so that nothing cancels where x is tiny.
    The relative error is below 2^-49: ``s`` has at most 3.5 roundings, series, products and sum 2.5 more, and for
    ``n > 0`` (times above 0.346) the rounding of ``1 - x`` and of ``n ln 2`` weigh up to 3 each.
    """
    odd = 2 * bits + 1
    x = odd.double() * 2.0**-63
    mantissa, exponent = torch.frexp(((2**63 - 1 - odd) + 1).double() * 2.0**-63)
    is_low = mantissa < LOWEST_MANTISSA
    m = torch.where(is_low, 2 * mantissa, mantissa)
    halvings = torch.where(is_low, 1 - exponent, -exponent).double()
    s = torch.where(halvings == 0, x, 1 - m) / (1 + m)
    square = s * s
    series = torch.full_like(s, SERIES[-1])
    for coefficient in SERIES[-2::-1]:
        series = series * square + coefficient
    return halvings * LN2 + 2 * s * series


def earliest(times: Tensor) -> Tensor:
    """``[T]`` int32: the column of the smallest time, the lowest among equals; -1 where none is finite."""
    first = times.amin(-1, keepdim=True)
    columns = torch.arange(times.shape[-1], device=times.device)
    winner = torch.where(times == first, columns, times.shape[-1]).amin(-1)
    return torch.where(first.squeeze(-1) < torch.inf, winner, -1).int()


def race_draw(weights: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
    """Draw one column per row with chances proportional to the weights, by a race; some rows at a time.

    Args:
        weights: ``[T, V]`` int64, not negative and below 2^53; they need no particular sum.
        seeds: As in :func:`~deepinfer_core.ops.sampling.random.random_words`.
        positions: Likewise.
        purpose: Likewise.

    Returns:
        ``[T]`` int32: the token that arrives first; -1 where all weights are 0.
    """
    rows = max(_AT_ONCE // weights.shape[-1], 1)
    pieces = zip(weights.split(rows), seeds.split(rows), positions.split(rows), strict=True)
    return torch.cat([earliest(exponential(race_bits(s, p, purpose, w.shape[-1])) / w.double()) for w, s, p in pieces])
