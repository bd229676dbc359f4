"""Who decides how many drafts are verified: rules that keep the law, and rules that look as good and break it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul

import torch

from deepinfer_core.ops.speculation.choose_lengths import choose_lengths

Confidence = tuple[tuple[float, ...], ...]
"""Confidences of the drafts of each request of a group."""
Lengths = tuple[int, ...]
"""Drafts of each request to verify."""

STAIRCASE = (1.0, 0.7, 0.68, 0.66, 0.52, 0.5, 0.49)
"""Steps per second by number of drafts verified, with steps like those of graphs of a few sizes."""
SLOPE = tuple(0.86**drafts for drafts in range(16))
"""The same without steps."""


class Policy:
    """Decides in two parts, as the engine does: the budget from the past, its split from the present.

    Attributes:
        looks_back: Whether :meth:`budget` depends on its argument.
    """

    looks_back = False

    def budget(self, older: Confidence) -> int:
        """Drafts in all, from the confidences of the proposals before the current ones (1 where there are none)."""
        del older
        return 0

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        """Drafts of each request, at most its limit."""
        raise NotImplementedError


@cache
def shared(confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
    """``speculation.choose_lengths`` for one group."""
    numbers = torch.tensor(limits, dtype=torch.int32), torch.tensor([budget], dtype=torch.int32)
    return tuple(choose_lengths(torch.tensor(confidence), *numbers).tolist())


def survivals(confidence: Confidence) -> list[list[float]]:
    """Chance that each draft and all before it stand."""
    return [list(accumulate(row, mul)) for row in confidence]


def best_budget(confidence: Confidence, steps_per_second: Sequence[float] = STAIRCASE) -> int:
    """The number of drafts that gives the most tokens per second; the smallest of equals (spec dspark 5.4)."""
    pool = sorted((s for row in survivals(confidence) for s in row), reverse=True)
    tokens = accumulate(pool, initial=float(len(confidence)))
    rates = [rate * tokens for rate, tokens in zip(steps_per_second, tokens, strict=False)]
    return rates.index(max(rates))


@dataclass(frozen=True)
class FixedBudget(Policy):
    """The likeliest prefixes by current confidences, so many in all."""

    drafts: int

    def budget(self, older: Confidence) -> int:
        del older
        return self.drafts

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        return shared(confidence, limits, budget)


@dataclass(frozen=True)
class OlderBudget(Policy):
    """What the engine does: the best budget for the proposals before, split by the confidences of the current ones."""

    steps_per_second: tuple[float, ...] = STAIRCASE
    looks_back = True

    def budget(self, older: Confidence) -> int:
        return best_budget(older, self.steps_per_second)

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        return shared(confidence, limits, budget)


@dataclass(frozen=True)
class FixedLengths(Policy):
    """The same number for each request."""

    drafts: int

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del confidence, budget
        return tuple(min(self.drafts, limit) for limit in limits)


@dataclass(frozen=True)
class Threshold(Policy):
    """Each request up to its first confidence that is too low."""

    least: float

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del budget
        leading = [next((k for k, c in enumerate(row) if c < self.least), len(row)) for row in confidence]
        return tuple(map(min, leading, limits))


@dataclass(frozen=True)
class EarlyStop(Policy):
    """Current confidences, likeliest first, until one more draft no longer pays; what comes later is not looked at."""

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del budget
        tokens, taken = float(len(confidence)), 0
        pool = sorted((s for row, n in zip(survivals(confidence), limits, strict=True) for s in row[:n]), reverse=True)
        for survival in pool:
            gain = (tokens + survival) * SLOPE[taken + 1]
            if gain <= tokens * SLOPE[taken]:
                break
            tokens, taken = tokens + survival, taken + 1
        return shared(confidence, limits, taken)


@dataclass(frozen=True)
class BestNow(Policy):
    """Wrong: the best budget by current confidences. Whether draft k is verified depends on confidence k + 1."""

    steps_per_second: tuple[float, ...] = STAIRCASE

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del budget
        return shared(confidence, limits, best_budget(confidence, self.steps_per_second))


@dataclass(frozen=True)
class DropUnlikelyBlocks(Policy):
    """Wrong: a whole block is verified or none of it, and a low confidence anywhere in it decides."""

    least: float

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del budget
        return tuple(
            limit if min(row) >= self.least else 0 for row, limit in zip(confidence, limits, strict=True)
        )  # fmt: skip


@dataclass(frozen=True)
class LaterTiesFirst(FixedBudget):
    """Wrong: among equals the later draft and the later request. Whether a tie exists depends on the draft before."""

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        entries = [(s, k, r) for r, row in enumerate(survivals(confidence)) for k, s in enumerate(row[: limits[r]])]
        taken = sorted(entries, reverse=True)[:budget]
        return tuple(sum(r == request for _, _, r in taken) for request in range(len(limits)))


@dataclass(frozen=True)
class Erratic(Policy):
    """Wrong: any numbers, from a hash of all confidences."""

    seed: int

    def split(self, confidence: Confidence, limits: Lengths, budget: int) -> Lengths:
        del budget
        number = zlib.crc32(repr((self.seed, confidence)).encode())
        return tuple((number >> 4 * r) % (limit + 1) for r, limit in enumerate(limits))
