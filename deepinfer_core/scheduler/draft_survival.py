"""Chances that drafts survive: of those of a step, and what earlier ones taught."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, zip_longest
from math import isnan

MEMORY = 31
"""Sequence-steps that weigh as much as all older ones in what is remembered of survivals."""
FEW = 4
"""Sequences whose older drafts say enough about the next ones."""
POINTS = 4
"""Points of the curve of expected tokens for each draft per sequence."""
_CLOSED = -1.0
"""Instead of the chance of a draft that may not be verified: less than any."""


class Survivals:
    """Chances of the drafts of several sequences that they and all before them are accepted.

    Only drafts that may be verified count. Numbers lie by place in the proposal and then by sequence, so that most of
    the work is done by loops of the interpreter's own.

    Attributes:
        is_credible: Every chance is a number from 0 on.
        ranked: Chances, ascending.
        sums: Sum of the 0, 1, 2 and so on greatest chances.
        means: Mean chance at each place.
        num_sequences: How many.
    """

    def __init__(self, survival: Sequence[tuple[float, ...]], limits: Sequence[int]) -> None:
        """Sort them.

        Args:
            survival: Of each draft, by sequences.
            limits: Drafts of each sequence that may be verified, at most as many as it has and not 0.
        """
        rows = survival
        if list(map(len, rows)) != list(limits):
            rows = [row[:limit] for row, limit in zip(rows, limits, strict=True)]
        count = self.num_sequences = len(rows)
        is_square = min(limits) == max(limits)
        columns = list(zip(*rows, strict=True)) if is_square else list(zip_longest(*rows, fillvalue=_CLOSED))
        num_open = [count] * len(columns)
        num_closed = count * len(columns) - sum(limits)
        if num_closed:
            num_open = [sum(limit > place for limit in limits) for place in range(len(columns))]
        self.means = [
            (sum(column) - _CLOSED * (count - number)) / number
            for column, number in zip(columns, num_open, strict=True)
        ]
        self._flat = list(chain.from_iterable(columns))
        self.ranked = sorted(self._flat)[num_closed:]
        self.sums = list(accumulate(reversed(self.ranked), initial=0.0))
        self.is_credible = self.ranked[0] >= 0.0 and not any(map(isnan, self.means))
        self._limits = limits
        self._columns = columns

    def likeliest(self, budget: int) -> list[int]:
        """How many drafts of each sequence are among the so many likeliest.

        Of equals those at earlier places come first, and then those of earlier sequences: a draft never competes with
        those behind it, which have no greater chance, so that its share does not depend on them.
        """
        if budget == len(self.ranked):
            return list(self._limits)
        if not budget:
            return [0] * self.num_sequences
        bar = self.ranked[-budget]
        most = len(self._columns)
        chosen = [most - bisect_right(ascending, bar) for ascending in zip(*self._columns[::-1], strict=True)]
        place = -1
        for _ in range(budget - (len(self.ranked) - bisect_right(self.ranked, bar))):
            place = self._flat.index(bar, place + 1)
            chosen[place % self.num_sequences] += 1
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
        _blend(self._curve, _gains(seen), share)

    def complete(self, row: tuple[float, ...], num_drafts: int) -> tuple[float, ...]:
        """So many chances: those of the row, then the usual ones; drafts of which nothing is known are sure."""
        known = row[:num_drafts]
        usual = [*self._means[:num_drafts], *[1.0] * (num_drafts - len(self._means))]
        return tuple(accumulate([*known, *usual[len(known) :]], min))

    def steady(self, gains: list[float], num_sequences: int) -> list[float]:
        """Accepted drafts to expect of 0, 1, 2 and so on: those of few sequences say little of their next drafts.

        What the older generation of ``FEW`` sequences or more promises stands; of fewer it counts in proportion, and
        what was usual for the rest.
        """
        if num_sequences >= FEW or not self._means:
            return gains
        own = num_sequences / FEW
        return [own * gain + (1.0 - own) * self.gain(num_sequences, drafts) for drafts, gain in enumerate(gains)]

    def gain(self, num_sequences: int, num_drafts: int) -> float:
        """Accepted drafts of a step that verifies the likeliest so many of all."""
        return num_sequences * _at(self._curve, POINTS * num_drafts / num_sequences)


def _gains(seen: Survivals) -> list[float]:
    """Accepted drafts per sequence to expect when 0, 1/4, 2/4 and so on drafts per sequence are verified."""
    count = seen.num_sequences
    num_points = POINTS * len(seen.ranked) // count + 1
    return [_at(seen.sums, point * count / POINTS) / count for point in range(num_points)]


def _blend(kept: list[float], seen: Sequence[float], share: float) -> None:
    """Move what is kept towards what was seen; what was never seen before is taken as it is."""
    both = len(kept)
    kept[:] = [old + share * (new - old) for old, new in zip(kept, seen, strict=False)] + kept[len(seen) :]
    kept += seen[both:]


def _at(values: Sequence[float], place: float) -> float:
    """On straight lines between values at 0, 1, 2 and so on; the last one beyond them."""
    low = int(place)
    if low + 1 >= len(values):
        return values[-1]
    return values[low] + (place - low) * (values[low + 1] - values[low])


def credible_survival(survival: Iterable[float]) -> tuple[float, ...]:
    """The same chances, 0 from the first on that is not a number from 0 to the one before."""
    return tuple(accumulate(survival, lambda before, own: own if 0.0 <= own <= before else 0.0, initial=1.0))[1:]
