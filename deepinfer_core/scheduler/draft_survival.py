"""Chances that drafts survive: of those of a step, and what earlier ones taught."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, zip_longest
from math import isnan
from operator import mul

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
        is_credible: Every confidence is a number from 0 to 1.
        ranked: Chances, ascending.
        means: Mean chance at each place.
        num_sequences: How many.
    """

    def __init__(self, confidence: Sequence[tuple[float, ...]], limits: Sequence[int]) -> None:
        """Multiply confidences up.

        Args:
            confidence: Of each draft, by sequences.
            limits: Drafts of each sequence that may be verified, at most as many as it has and not 0.
        """
        rows = confidence
        if list(map(len, rows)) != list(limits):
            rows = [row[:limit] for row, limit in zip(rows, limits, strict=True)]
        count = self.num_sequences = len(rows)
        columns = list(zip_longest(*rows, fillvalue=0.0))
        products = [list(columns[0])]
        for column in columns[1:]:
            products.append(list(map(mul, products[-1], column)))
        sums = list(map(sum, products))
        num_open = [count] * len(columns)
        num_closed = count * len(columns) - sum(limits)
        for number, limit in enumerate(limits) if num_closed else ():
            for place in range(limit, len(columns)):
                products[place][number] = _CLOSED
                num_open[place] -= 1
        self.means = [total / number for total, number in zip(sums, num_open, strict=True)]
        self._flat = list(chain.from_iterable(products))
        self.ranked = sorted(self._flat)[num_closed:]
        self.is_credible = max(map(max, columns)) <= 1.0 and self.ranked[0] >= 0.0 and not isnan(sum(sums))
        self._limits = limits
        self._products = products

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
        most = len(self._products)
        chosen = [most - bisect_right(ascending, bar) for ascending in zip(*self._products[::-1], strict=True)]
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

    def steady(self, expected: list[float], num_sequences: int) -> list[float]:
        """Tokens to expect of 0, 1, 2 and so on drafts: those of few sequences say little of their next drafts.

        What the older generation of ``FEW`` sequences or more promises stands; of fewer it counts in proportion, and
        what was usual for the rest.
        """
        if num_sequences >= FEW or not self._means:
            return expected
        own = num_sequences / FEW
        return [
            own * tokens + (1.0 - own) * self.expected(num_sequences, drafts) for drafts, tokens in enumerate(expected)
        ]

    def expected(self, num_sequences: int, num_drafts: int) -> float:
        """Tokens of a step that verifies the likeliest so many drafts of all."""
        return num_sequences * (1.0 + _at(self._curve, POINTS * num_drafts / num_sequences))


def _gains(seen: Survivals) -> list[float]:
    """Accepted drafts per sequence to expect when 0, 1/4, 2/4 and so on drafts per sequence are verified."""
    best_first = seen.ranked[::-1]
    count = seen.num_sequences
    gains, total, done = [0.0], 0.0, 0
    for point in range(1, POINTS * len(best_first) // count + 1):
        whole, part = divmod(point * count, POINTS)
        total += sum(best_first[done:whole])
        done = whole
        gains.append((total + (part / POINTS * best_first[whole] if part else 0.0)) / count)
    return gains


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


def credible_confidence(confidence: Iterable[float]) -> tuple[float, ...]:
    """The same confidences, 0 for what is not a number from 0 to 1."""
    return tuple(own if 0.0 <= own <= 1.0 else 0.0 for own in confidence)
