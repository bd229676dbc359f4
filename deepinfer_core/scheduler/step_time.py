"""What a decode step will take: a curve measured at the start, corrected by what steps really took."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler.drafts import StepTiming

log = get_logger(__name__)

FACTOR_STEPS = 64
"""Steps of one size that its factor remembers."""
FACTOR_SAMPLES = 5
"""Steps of one size before its factor counts."""
REST_STEPS = 9
"""Steps with about as many sequences that the median of their rests remembers."""
REST_SAMPLES = 5
"""Of these, before the number of sequences counts as known."""
NEAR = 2
"""Rests of steps of so many times more or fewer sequences still say something."""


@dataclass(slots=True)
class Piece:
    """Numbers of rows between which the price of verifying is a straight line, but never below what fewer rows cost.

    Attributes:
        first: Fewest rows.
        last: Most rows.
        first_s: Seconds of the fewest.
        slope_s: Seconds of each row more.
        floor_s: What fewer rows cost.
    """

    first: int
    last: int
    first_s: float
    slope_s: float
    floor_s: float

    def seconds(self, num_rows: int) -> float:
        """Of verifying so many rows, from ``first`` to ``last``."""
        return max(self.floor_s, self.first_s + self.slope_s * (num_rows - self.first))

    @property
    def lowest_s(self) -> float:
        """Seconds of the fewest rows."""
        return max(self.floor_s, self.first_s)

    @property
    def num_free(self) -> int:
        """Most rows that cost no more than the fewest; the slope is not 0."""
        return min(self.last, self.first + max(0, int((self.floor_s - self.first_s) / self.slope_s)))


class StepTimeModel:
    """Predicts the seconds of a decode step from its sequences and rows (spec dspark 5.2).

    ``seconds = base(rows) * factor(rows) + rest(sequences)``. The base curve is measured once, when nothing else
    runs and contexts are short. The factor is what steps of about that size really take of it, longer contexts and a
    busy machine included: the median of recent ones; for a size of which too few were seen, the median of the factors
    of the others. (DeepInfer adds a slope for each row instead. What slows every step alike then looks like a price of
    rows, and drafts are given up for it.) The rest is the median of recent steps with as many sequences,
    separately for steps that ran the draft module and steps that did not.

    With captured graphs a step costs what the smallest graph that holds it costs, so rows are rounded up to a measured
    size in the base curve; with ``interpolate`` they are not. Above the largest size both kinds go on as a straight
    line through the last two sizes, with a factor of their own.

    Not safe for threads; ``observe`` and every question take a few microseconds.
    """

    def __init__(
        self,
        base: Mapping[int, float],
        *,
        draft: Mapping[int, float] | None = None,
        interpolate: bool = False,
    ) -> None:
        """Start from measured curves.

        Args:
            base: Seconds of verifying by rows: forward pass and sampling. A size that seems faster than a smaller one
                counts as equal.
            draft: Seconds of the draft module by sequences, used until steps have shown what it takes; None if it was
                not measured.
            interpolate: The backend has no captured graphs: sizes between two measured ones cost something between.

        Raises:
            ConfigError: A curve is empty, or has a size below 1 or a time that is not a positive number.
        """
        problems = _problems("decode steps", base)
        if draft is not None:
            problems += _problems("the draft module", draft)
        if problems:
            raise ConfigError(problems, "step times")
        self._sizes, self._base = _monotone(base)
        inner = _slopes(self._sizes, self._base) if interpolate else [0.0] * (len(base) - 1)
        self._slopes = [0.0, *inner, _tail(self._sizes, self._base)]
        self._draft = _monotone(draft) if draft else None
        self._draft_tail = _tail(*self._draft) if self._draft else 0.0
        self._factors = _Factors(len(self._sizes))
        self._rests = {False: _RestTimes(), True: _RestTimes()}
        if self._base[0] == self._base[-1]:
            log.warning(
                "steps of %d to %d rows were measured to take the same time: adaptive draft lengths will verify every "
                "draft; measure again on an idle machine, or choose a fixed length",
                self._sizes[0],
                self._sizes[-1],
            )

    def seconds(self, num_sequences: int, num_rows: int, *, proposes: bool) -> float:
        """Of a whole step; ``proposes`` says whether the draft module runs behind it."""
        return self.verify_s(num_rows) + self.rest_s(num_sequences, proposes=proposes)

    def factor(self, num_rows: int) -> float:
        """What verifying about so many rows takes of the time that was measured at the start."""
        return self._factors.of(self._group(num_rows))

    def knows_size(self, num_rows: int) -> bool:
        """Whether steps of about so many rows were seen."""
        return self._factors.knows(self._group(num_rows))

    def verify_s(self, num_rows: int) -> float:
        """Of the forward pass over so many rows, and their sampling."""
        return self._base_s(num_rows) * self.factor(num_rows)

    def pieces(self, fewest: int, most: int) -> list[Piece]:
        """Ranges of rows from ``fewest`` to ``most``, ascending, in each of which the price is a straight line.

        From piece to piece prices never fall, whatever the factors of their sizes are.
        """
        found: list[Piece] = []
        floor_s, first, largest = 0.0, fewest, len(self._sizes) - 1
        for place in range(bisect_left(self._sizes, fewest), len(self._slopes)):
            if first > most:
                break
            group, factor = min(place, largest), self._factors.of(place)
            slope_s = self._slopes[place] * factor
            first_s = self._base[group] * factor + slope_s * (first - self._sizes[group])
            last = min(self._sizes[place], most) if place <= largest else most
            found.append(Piece(first, last, first_s, slope_s, floor_s))
            floor_s, first = max(floor_s, first_s + slope_s * (last - first)), last + 1
        return found

    def _base_s(self, num_rows: int) -> float:
        place = bisect_left(self._sizes, num_rows)
        group = min(place, len(self._sizes) - 1)
        return self._base[group] + self._slopes[place] * (num_rows - self._sizes[group])

    def _group(self, num_rows: int) -> int:
        """The measured size whose factor counts; one more than all for rows beyond the largest."""
        return bisect_left(self._sizes, num_rows)

    def rest_s(self, num_sequences: int, *, proposes: bool) -> float:
        """Of everything else: the draft module if it runs, and the host while the device waits."""
        own, other = self._rests[proposes], self._rests[not proposes]
        own_s, other_s = own.at(num_sequences), other.at(num_sequences)
        measured = self._measured_draft_s(num_sequences)
        if own_s is not None and (own.is_near(num_sequences) or not other.is_near(num_sequences)):
            known = self._measured_draft_s(own.nearest(num_sequences))
            return own_s * measured / known if proposes and known and measured else own_s
        if other_s is not None:
            return max(0.0, other_s + (measured if proposes else -measured))
        return measured if proposes else 0.0

    def _measured_draft_s(self, num_sequences: int) -> float:
        """Of the draft module by the curve of the start, which goes on straight; 0 without one."""
        if self._draft is None:
            return 0.0
        sizes, seconds = self._draft
        beyond = max(0, num_sequences - sizes[-1]) * self._draft_tail
        return _between(sizes, seconds, num_sequences) + beyond

    def draft_s(self, num_sequences: int) -> float:
        """Of the draft module: what steps that ran it took longer, else as measured at the start, else 0."""
        with_drafts = self.rest_s(num_sequences, proposes=True)
        return max(0.0, with_drafts - self.rest_s(num_sequences, proposes=False))

    def knows_draft(self, num_sequences: int) -> bool:
        """Whether ``draft_s`` is more than a guess; if not, only steps without the draft module can tell."""
        return self._draft is not None or self._rests[False].is_near(num_sequences)

    def observe(self, timing: StepTiming) -> None:
        """Learn from a step; a time that is not a number or below 0 says nothing, nor verifying in no time."""
        if timing.num_rows < 1 or timing.num_sequences < 1:
            return
        if 0.0 < timing.verify_s < math.inf:
            self._factors.add(self._group(timing.num_rows), timing.verify_s / self._base_s(timing.num_rows))
        if 0.0 <= timing.rest_s < math.inf:
            self._rests[timing.proposed].add(timing.num_sequences, timing.rest_s)


class _Factors:
    """Median of what recent steps took of their base, by measured size.

    Sizes that nobody measured, beyond the largest, have a factor of their own, which says nothing about the others: it
    makes up for the line that their base was taken from.
    """

    def __init__(self, num_measured: int) -> None:
        self._num_measured = num_measured
        self._recent: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._usual = 1.0

    def of(self, group: int) -> float:
        """Of a size: its own, or that of the others; 1 as long as nothing is known."""
        return self._medians.get(group, self._usual)

    def add(self, group: int, ratio: float) -> None:
        """Take one step."""
        recent = self._recent.setdefault(group, deque(maxlen=FACTOR_STEPS))
        recent.append(ratio)
        if len(recent) >= FACTOR_SAMPLES:
            self._medians[group] = median(recent)
            measured = [value for known, value in self._medians.items() if known < self._num_measured]
            self._usual = median(measured) if measured else 1.0

    def knows(self, group: int) -> bool:
        """Whether a size has a factor of its own."""
        return group in self._medians


class _RestTimes:
    """Median seconds by number of sequences, in half octaves: it seldom stays the same for long."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._sizes: list[int] = []
        self._medians: list[float] = []

    def add(self, num_sequences: int, seconds: float) -> None:
        """Take one step's time."""
        size = round(2 ** (round(2 * math.log2(num_sequences)) / 2))
        recent = self._recent.setdefault(size, deque(maxlen=REST_STEPS))
        recent.append(seconds)
        if len(recent) < REST_SAMPLES:
            return
        place = bisect_left(self._sizes, size)
        if self._sizes[place : place + 1] != [size]:
            self._sizes.insert(place, size)
            self._medians.insert(place, 0.0)
        self._medians[place] = median(recent)

    def at(self, num_sequences: int) -> float | None:
        """For so many sequences: known, or between the nearest that are; None when nothing is known."""
        return _between(self._sizes, self._medians, num_sequences) if self._sizes else None

    def nearest(self, num_sequences: int) -> int:
        """So many sequences, or the nearest number within those of which something is known."""
        return min(max(num_sequences, self._sizes[0]), self._sizes[-1])

    def is_near(self, num_sequences: int) -> bool:
        """Whether what is known was seen with about as many sequences, or with fewer and with more."""
        if not self._sizes:
            return False
        return self._sizes[0] <= NEAR * num_sequences and num_sequences <= NEAR * self._sizes[-1]


def _problems(what: str, curve: Mapping[int, float]) -> list[str]:
    """What is wrong with a measured curve."""
    if not curve:
        return [f"no times of {what} were measured; measure at least two sizes, or choose a fixed draft length"]
    problems = [f"{what} of size {size} cannot be; sizes start at 1" for size in curve if size < 1]
    wrong = {size: seconds for size, seconds in curve.items() if not 0.0 < seconds < math.inf}
    problems += [
        f"{what} of size {size} took {seconds} s; a time is a number above 0, so measure again"
        for size, seconds in wrong.items()
    ]
    return problems


def _monotone(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Sizes ascending, and the least times above the measured ones that never fall."""
    sizes = sorted(curve)
    return sizes, list(accumulate((float(curve[size]) for size in sizes), max))


def _slopes(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Seconds of each row more, from size to size."""
    return [
        (after_s - before_s) / (after - before)
        for (before, after), (before_s, after_s) in zip(pairwise(sizes), pairwise(seconds), strict=True)
    ]


def _tail(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds of each row above the largest size; one size alone tells the seconds of its own rows only."""
    if len(sizes) == 1:
        return seconds[0] / sizes[0]
    return _slopes(sizes[-2:], seconds[-2:])[0]


def _between(sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
    """On straight lines between measured sizes; outside of them the nearest one."""
    right = bisect_right(sizes, size)
    if right == 0:
        return seconds[0]
    if right == len(sizes):
        return seconds[-1]
    low, high = sizes[right - 1], sizes[right]
    return seconds[right - 1] + (size - low) / (high - low) * (seconds[right] - seconds[right - 1])
