"""Random numbers of the sampler, defined bit for bit: Philox4x32-10 keyed by seed, position and purpose.

No generator has state: the same request draws the same numbers in any batch, in any row and on any device
(spec engine/05 section 8). Arithmetic is on int64 tensors that hold 32-bit words and never overflows.
"""

from __future__ import annotations

import torch
from torch import Tensor

DRAW = 0
"""Purpose of the draw of a token from the target distribution."""
RESIDUAL = 1
"""Purpose of the draw that replaces a rejected draft."""
ACCEPT = 2
"""Purpose of the coin that accepts or rejects a draft."""
DRAFT = 3
"""First purpose of drafting: draft ``i`` after the token at position ``a`` uses position ``a``, purpose ``DRAFT + i``.

Keyed by the anchor, not by its own position, so that a position that is drafted again gets fresh numbers.
"""

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words per column (Salmon et al. 2011, Random123's ``philox4x32`` with 10 rounds).

    Args:
        counter: ``[4, T]`` int64 words below 2^32.
        key: ``[2, T]`` int64 words below 2^32.

    Returns:
        ``[4, T]`` int64 words below 2^32.
    """
    multiplier = _column(_MULTIPLIERS, counter.device)
    step = _column(_KEY_STEPS, counter.device)
    even, odd = counter[0::2], counter[1::2]
    for number in range(_ROUNDS):
        high, low = _multiply(multiplier, even)
        even = high.flip(0) ^ odd ^ ((key + number * step) & _WORD)
        odd = low.flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def random_words(seeds: Tensor, positions: Tensor, purpose: Tensor | int) -> Tensor:
    """Random words of each row: key = seed, counter = (position, purpose, 0, 0).

    Args:
        seeds: ``[T]`` int64, the bit pattern of a uint64; the low half is key word 0.
        positions: ``[T]``, index in the sequence of the token that is produced.
        purpose: What the words are for, one number or ``[T]``; different purposes are independent.

    Returns:
        ``[4, T]`` int64 words below 2^32.
    """
    return counted_words(seeds, positions, purpose, 0, 0)


def counted_words(
    seeds: Tensor, positions: Tensor, purpose: Tensor | int, third: Tensor | int, fourth: Tensor | int
) -> Tensor:
    """Random words ``[4, ...]``: key = seed, counter = (position, purpose, third, fourth), all broadcast together."""
    parts = (positions.long() & _WORD, purpose, third, fourth)
    shape = torch.broadcast_shapes(seeds.shape, *(part.shape for part in parts if isinstance(part, Tensor)))
    counter = torch.empty(4, *shape, dtype=torch.int64, device=positions.device)
    for word, part in enumerate(parts):
        counter[word] = part
    key = torch.stack((seeds & _WORD, (seeds >> 32) & _WORD)).expand(2, *shape)
    return philox(counter.reshape(4, -1), key.reshape(2, -1)).reshape(4, *shape)


def uniform_below(total: Tensor, words: Tensor) -> Tensor:
    """Integers in ``[0, total)``: ``floor(total * U / 2^62)`` with 62 random bits ``U``.

    ``U`` is made of the upper 31 bits of words 0 (high) and 1 (low). The chance of any set of integers is
    exact to ``2^-62 * total``.

    Args:
        total: ``[T]`` int64 below 2^32.
        words: ``[4, T]`` from :func:`random_words`.
    """
    high, low = words[0] >> 1, words[1] >> 1
    return (high * total + ((low * total) >> 31)) >> 31


def uniform(words: Tensor) -> Tensor:
    """Float64 in ``[0, 1)``: word 0 over 2^32, exactly."""
    return words[0].double() * 2.0**-32


def _column(words: tuple[int, int], device: torch.device) -> Tensor:
    return torch.stack([torch.full((1,), word, dtype=torch.int64, device=device) for word in words])


def _multiply(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of the 64-bit product of two 32-bit words, by halves of ``b``."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
