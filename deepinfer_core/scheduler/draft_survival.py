"""Chances that drafts survive: of those of a step, and what earlier ones taught."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from math import isnan
from operator import neg
from typing import Protocol

MEMORY = 31
"""Sequence-steps that weigh as much as all older ones in what is remembered of survivals."""
FEW = 4
"""Sequences whose older drafts say enough about the next ones."""
POINTS = 4
"""Points of the curve of expected tokens for each draft per sequence."""
_CLOSED = -1.0
"""Instead of the chance of a draft that may not be verified: less than any."""


class Gains(Protocol):
    """Accepted drafts to expect of every number of drafts; each adds no more than the one before it."""

    def of(self, num_drafts: int) -> float:
        """Of so many."""
        ...

    def worth(self, least: float) -> int:
        """How many drafts add more than ``least`` each."""
        ...


class RankedGains:
    """Of the likeliest drafts of a step: sums of their chances.

    Sums are kept for every 1 / ``POINTS`` draft per sequence only, because few numbers of drafts are asked for.

    Attributes:
        ranked: Chances, descending.
        num_sequences: Whose they are.
    """

    def __init__(self, ranked: list[float], num_sequences: int) -> None:
        """Add them up."""
        self.ranked = ranked
        self.num_sequences = num_sequences
        stride = self._stride = max(num_sequences // POINTS, 1)
        bounds = range(0, len(ranked) - stride + 1, stride)
        parts = ranked if stride == 1 else [sum(ranked[low : low + stride]) for low in bounds]
        self._sums = list(accumulate(parts, initial=0.0))

    def of(self, num_drafts: int) -> float:
        """The sum of the so many greatest chances."""
        part, rest = divmod(num_drafts, self._stride)
        return self._sums[part] + sum(self.ranked[num_drafts - rest : num_drafts]) if rest else self._sums[part]

    def worth(self, least: float) -> int:
        """How many chances are above ``least``."""
        return bisect_left(self.ranked, -least, key=neg)

    def curve(self) -> list[float]:
        """Accepted drafts per sequence at 0, 1 / ``POINTS``, 2 / ``POINTS`` and so on drafts per sequence."""
        count = self.num_sequences
        if count % POINTS == 0:
            return [total / count for total in self._sums]
        steps = range(POINTS * len(self.ranked) // count + 1)
        wholes = [divmod(step * count, POINTS) for step in steps]
        return [
            (self.of(whole) + quarters / POINTS * self.ranked[whole] if quarters else self.of(whole)) / count
            for whole, quarters in wholes
        ]


class UsualGains:
    """Of a step as steps usually are: a curve over drafts per sequence, straight between its points."""

    def __init__(self, curve: Sequence[float], num_sequences: int) -> None:
        """Scale it.

        Args:
            curve: Accepted drafts per sequence at 0, 1 / ``POINTS``, 2 / ``POINTS`` and so on drafts per sequence.
            num_sequences: How many.
        """
        self._curve = curve
        self._num_sequences = num_sequences

    def of(self, num_drafts: int) -> float:
        """Of the likeliest so many; beyond the curve its last value."""
        place = POINTS * num_drafts / self._num_sequences
        low = int(place)
        if low + 1 >= len(self._curve):
            return self._num_sequences * self._curve[-1]
        rise = self._curve[low + 1] - self._curve[low]
        return self._num_sequences * (self._curve[low] + (place - low) * rise)

    def worth(self, least: float) -> int:
        """Drafts up to the last point before which each adds more than ``least``."""
        points = [point for point, (low, high) in enumerate(pairwise(self._curve), 1) if POINTS * (high - low) > least]
        return max(points, default=0) * self._num_sequences // POINTS


class Survivals:
    """Chances of the drafts of several sequences that they and all before them are accepted.

    Only drafts that may be verified count. Most of the work is done by loops of the interpreter's own; what choosing
    lengths does not need is done when it is asked for.

    Attributes:
        ranked: Chances, descending.
        is_credible: Every chance is a number from 0 on.
        num_sequences: How many.
    """

    def __init__(self, survival: Sequence[tuple[float, ...]], limits: Sequence[int]) -> None:
        """Sort them.

        Args:
            survival: Of each draft, by sequences.
            limits: Drafts of each sequence that may be verified, at most as many as it has and not 0.
        """
        count = self.num_sequences = len(survival)
        width = self._width = max(limits)
        num_open = sum(limits)
        flat = list(chain.from_iterable(survival))
        if num_open < count * width or len(flat) > num_open:
            closed = (_CLOSED,) * width
            rows = [(row[:limit] + closed)[:width] for row, limit in zip(survival, limits, strict=True)]
            flat = list(chain.from_iterable(rows))
        self._limits = limits
        self._flat = flat
        self.ranked = sorted(flat, reverse=True)[:num_open]
        self.is_credible = self.ranked[-1] >= 0.0 and not isnan(sum(flat))

    @property
    def num_possible(self) -> int:
        """Drafts that have a chance at all; the others come last, so that who leaves them out changes no other."""
        return len(self.ranked) if self.ranked[-1] else bisect_left(self.ranked, 0.0, key=neg)

    @cached_property
    def gains(self) -> RankedGains:
        """What the likeliest of them promise."""
        return RankedGains(self.ranked, self.num_sequences)

    @property
    def means(self) -> list[float]:
        """The mean chance at each place."""
        sums = [sum(self._column(place)) for place in range(self._width)]
        if len(self.ranked) == len(self._flat):
            return [total / self.num_sequences for total in sums]
        numbers = [sum(limit > place for limit in self._limits) for place in range(self._width)]
        return [
            (total - _CLOSED * (self.num_sequences - number)) / number
            for total, number in zip(sums, numbers, strict=True)
        ]

    def _column(self, place: int) -> list[float]:
        return self._flat[place :: self._width]

    def likeliest(self, budget: int) -> list[int]:
        """How many drafts of each sequence are among the so many likeliest.

        Of equals those at earlier places come first, and then those of earlier sequences: a draft never competes with
        those behind it, which have no greater chance, so that its share does not depend on them.
        """
        ranked = self.ranked
        if budget == len(ranked):
            return list(self._limits)
        if not budget:
            return [0] * self.num_sequences
        bar = ranked[budget - 1]
        rising = zip(*[reversed(self._flat)] * self._width, strict=True)  # the last sequence first
        if ranked[budget] < bar:
            return [self._width - bisect_left(row, bar) for row in rising][::-1]
        chosen = [self._width - bisect_right(row, bar) for row in rising][::-1]
        columns = map(self._column, range(self._width))
        equals = [number for column in columns for number, chance in enumerate(column) if chance == bar]
        for number in equals[: budget - sum(chosen)]:
            chosen[number] += 1
        return chosen


class PastDrafts:
    """What earlier drafts taught: the usual chance at each place, and tokens to expect of the likeliest drafts.

    The second is a curve over drafts per sequence. A mean of chances would not do: of many sequences the best drafts
    are verified, and these are better than the mean.
    """

    def __init__(self) -> None:
        self._means: list[float] = []
        self._curve = [0.0]
        self._weight = 0.0

    @property
    def num_drafts(self) -> int:
        """Most drafts of one sequence that were seen."""
        return len(self._means)

    def learn(self, seen: Survivals) -> None:
        """Take note of the drafts of a step; the newest sequence-steps weigh most."""
        self._weight = min(self._weight, MEMORY) + seen.num_sequences
        share = seen.num_sequences / self._weight
        _blend(self._means, seen.means, share)
        _blend(self._curve, seen.gains.curve(), share)

    def complete(self, row: tuple[float, ...], num_drafts: int) -> tuple[float, ...]:
        """So many chances: those of the row, then the usual ones; drafts of which nothing is known are sure."""
        known = row[:num_drafts]
        usual = [*self._means[:num_drafts], *[1.0] * (num_drafts - len(self._means))]
        return tuple(accumulate([*known, *usual[len(known) :]], min))

    def steady(self, gains: RankedGains) -> RankedGains:
        """What a generation promises: that of few sequences says little of their next drafts.

        What ``FEW`` sequences or more promise stands; of fewer it counts in proportion, and what was usual for the
        rest.
        """
        if gains.num_sequences >= FEW or not self._means:
            return gains
        own = gains.num_sequences / FEW
        usual = self.gains(gains.num_sequences)
        rises = [after - before for before, after in pairwise(map(usual.of, range(len(gains.ranked) + 1)))]
        mixed = [own * chance + (1.0 - own) * rise for chance, rise in zip(gains.ranked, rises, strict=True)]
        return RankedGains(sorted(mixed, reverse=True), gains.num_sequences)

    def gains(self, num_sequences: int) -> UsualGains:
        """What is usual for so many sequences."""
        return UsualGains(self._curve, num_sequences)


def _blend(kept: list[float], seen: Sequence[float], share: float) -> None:
    """Move what is kept towards what was seen; what was never seen before is taken as it is."""
    both = len(kept)
    kept[:] = [old + share * (new - old) for old, new in zip(kept, seen, strict=False)] + kept[len(seen) :]
    kept += seen[both:]


def credible_survival(survival: Iterable[float]) -> tuple[float, ...]:
    """The same chances, 0 from the first on that is not a number from 0 to the one before."""
    return tuple(accumulate(survival, lambda before, own: own if 0.0 <= own <= before else 0.0, initial=1.0))[1:]
