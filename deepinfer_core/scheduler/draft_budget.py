"""How many drafts pay: a fixed number, or what promises most tokens per second (spec dspark 5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from functools import partial
from itertools import accumulate, chain
from math import ceil, isnan
from operator import add

from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler.draft_survival import PastDrafts, Survivals, credible_survival
from deepinfer_core.scheduler.drafts import StepTiming, VerifyAll
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_time import Piece, StepTimeModel

log = get_logger(__name__)

PROBE_LOSS = 0.004
"""Share of the time that probing may take at most."""
REVIEW_INTERVAL = 8
"""Steps after which it is asked again whether drafting pays, once the answer has been the same for as many."""
EXPLORE_INTERVAL = 16
"""Steps from one without drafts to the next, while nobody knows what the draft module takes."""


class FixedLengths:
    """Verifies the first drafts of every sequence, always as many, and makes new ones after every step."""

    def __init__(self, num_drafts: int) -> None:
        """Choose how many.

        Args:
            num_drafts: Drafts of each sequence; 0 for none, and then none are made.

        Raises:
            ConfigError: It is negative.
        """
        if num_drafts < 0:
            raise ConfigError(f"num_drafts={num_drafts} is negative; give the number of drafts to verify, or 0")
        self._num_drafts = num_drafts
        self._all = VerifyAll(proposes=num_drafts > 0)

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """So many of each or its limit, in order, until no row is left."""
        return self._all.lengths(sequences, [min(limit, self._num_drafts) for limit in limits], num_spare_rows)

    def proposes(self, num_sequences: int) -> bool:
        """The same for every step."""
        return self._all.proposes(num_sequences)

    def observe(self, timing: StepTiming) -> None:
        """Nothing to learn."""


class AdaptiveLengths:
    """Verifies as many drafts in all as promise most tokens per second, and of these the likeliest.

    The total comes from the drafts before the current ones, whose fate is settled, and from measured times; the
    current drafts compete for it by the chance that they and all before them are accepted. So no decision about a draft
    looks at what was estimated for a later one of its sequence, and the output keeps the law of the model.

    Where drafting costs more than it yields it stops, but for a probe from time to time.
    """

    def __init__(self, step_time: StepTimeModel, *, probe_interval: int = 64, hysteresis: float = 0.0) -> None:
        """Start with no experience: drafts are expected to be accepted until confidences say otherwise.

        Args:
            step_time: What steps take; it learns from ``observe``.
            probe_interval: Steps between drafts that are made though they do not pay, so that it is noticed when they
                would. Longer where the draft module is slow: probes never take more than ``PROBE_LOSS`` of the time.
            hysteresis: Share of the promised rate that is given up to keep the total of the last step; 0 for none.

        Raises:
            ConfigError: ``probe_interval`` is below 1, or ``hysteresis`` negative or not a number.
        """
        problems: list[str] = []
        if probe_interval < 1:
            problems.append(f"probe_interval={probe_interval} is below 1; give a number of steps")
        if not hysteresis >= 0.0:
            problems.append(f"hysteresis={hysteresis} is not a share; give 0 for none, or a small number such as 0.01")
        if problems:
            raise ConfigError(problems, "draft lengths")
        self._time = step_time
        self._probe_interval = probe_interval
        self._hysteresis = hysteresis
        self._past = PastDrafts()
        self._before: tuple[list[tuple[float, ...]], list[float]] = [], []
        self._last = (0, 0)
        self._pays = self._answer = True
        self._asked_for, self._age = 0, 0
        self._num_alike = 0
        self._is_suspicious = False

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """The total by the older generation, the share of each sequence by the current one."""
        members, open_limits = sequences, limits
        if not all(limits):
            members = [sequence for sequence, limit in zip(sequences, limits, strict=True) if limit]
            open_limits = [limit for limit in limits if limit]
        if not members:
            return [0] * len(sequences)
        gains = self._older([member.older_survival for member in members], open_limits)
        budget = self._budget(gains[: max(num_spare_rows, 0) + 1], len(sequences))
        current = self._current([member.proposal.survival for member in members], open_limits)
        self._past.learn(current)  # counts from the next step on
        chosen = current.likeliest(budget)
        if len(chosen) == len(sequences):
            return chosen
        rest = iter(chosen)
        return [next(rest) if limit else 0 for limit in limits]

    def proposes(self, num_sequences: int) -> bool:
        """Whether it pays by what is known of earlier drafts, or it is time to see how things are."""
        self._age += 1
        is_settled = self._num_alike >= REVIEW_INTERVAL
        if num_sequences != self._asked_for or not is_settled or self._age >= REVIEW_INTERVAL:
            self._asked_for, self._age = num_sequences, 0
            self._answer = num_sequences > 0 and self._drafting_pays(num_sequences)
        pays = self._answer
        self._num_alike = self._num_alike + 1 if pays is self._pays else 1
        self._pays = pays
        if pays:
            explores = not self._time.knows_draft(num_sequences) and self._num_alike % EXPLORE_INTERVAL == 0
            return not explores
        return self._num_alike % self._interval(num_sequences) == 0

    def observe(self, timing: StepTiming) -> None:
        """Take note of how long a decode step took."""
        self._time.observe(timing)

    def _older(self, rows: list[tuple[float, ...]], limits: Sequences[int]) -> list[float]:
        """Accepted drafts to expect of the 0, 1, 2 and so on likeliest ones of the older generation.

        What is not known of it is what was usual.
        """
        num_known = list(map(len, rows))
        if num_known == list(limits) and rows == self._before[0]:  # as a rule they were the current ones just before
            return self._before[1]
        if self._is_suspicious:
            rows = [credible_survival(row) for row in rows]
        if num_known != list(limits):
            complete = self._past.complete
            rows = [row if len(row) == limit else complete(row, limit) for row, limit in zip(rows, limits, strict=True)]
        pool = sorted(chain.from_iterable(rows), reverse=True)
        gains = list(accumulate(pool, initial=0.0))
        if isnan(gains[-1]) or pool[-1] < 0.0:
            self._suspect()
            return self._older(rows, limits)
        return gains

    def _budget(self, gains: list[float], num_sequences: int) -> int:
        """Drafts in all: of every possible total the one that promises most tokens per second."""
        gains = self._past.steady(gains, num_sequences)
        budget = best_budget(gains, num_sequences, self._time, proposes=self._pays)
        last_sequences, last = self._last
        if self._hysteresis and last_sequences == num_sequences and last < len(gains):

            def rate(drafts: int) -> float:
                seconds = self._time.seconds(num_sequences, num_sequences + drafts, proposes=self._pays)
                return (num_sequences + gains[drafts]) / seconds

            if rate(budget) <= (1.0 + self._hysteresis) * rate(last):
                budget = last
        self._last = (num_sequences, budget)
        return budget

    def _current(self, rows: list[tuple[float, ...]], limits: Sequences[int]) -> Survivals:
        """Chances of the current drafts."""
        current = Survivals(rows, limits)
        if not current.is_credible:
            self._suspect()
            rows = [credible_survival(row) for row in rows]
            current = Survivals(rows, limits)
        self._before = rows, current.sums
        return current

    def _suspect(self) -> None:
        if not self._is_suspicious:
            log.warning(
                "the draft module gave a confidence that is not a number from 0 to 1; such drafts, and those behind "
                "them, count as certain to be rejected: check the weights of the confidence head"
            )
        self._is_suspicious = True

    def _drafting_pays(self, num_sequences: int) -> bool:
        """Whether the usual survivals promise more tokens per second than no drafts at all."""
        if not self._past.num_drafts:
            return True
        most = num_sequences * self._past.num_drafts
        gain = partial(self._past.gain, num_sequences)
        _, best = _best_total(gain, most, num_sequences, self._time, proposes=True)
        return best > num_sequences / self._time.seconds(num_sequences, num_sequences, proposes=False)

    def _interval(self, num_sequences: int) -> int:
        """Steps from one probe to the next."""
        step_s = self._time.seconds(num_sequences, num_sequences, proposes=False)
        return max(self._probe_interval, ceil(self._time.draft_s(num_sequences) / (PROBE_LOSS * step_s)))


def best_budget(gains: Sequences[float], num_sequences: int, time: StepTimeModel, *, proposes: bool) -> int:
    """Of all numbers of drafts the smallest that promises most tokens per second.

    Every number is considered: steps get dearer in jumps, so that one more draft may not pay where many more do
    (spec dspark 5.3).

    Args:
        gains: Accepted drafts to expect of 0, 1, 2 and so on drafts; never falls, and each draft adds no more than the
            one before it.
        num_sequences: Rows that are not drafts.
        time: What steps take.
        proposes: Whether the draft module runs behind the step.
    """
    best, _ = _best_total(gains.__getitem__, len(gains) - 1, num_sequences, time, proposes=proposes)
    tokens = partial(add, num_sequences)
    return bisect_left(gains, tokens(gains[best]), 0, best + 1, key=tokens)


def _best_total(
    gain: Callable[[int], float], most: int, num_sequences: int, time: StepTimeModel, *, proposes: bool
) -> tuple[int, float]:
    """The number of drafts up to ``most`` that promises most tokens per second, and how many these are.

    Within a piece, where the price is a straight line, tokens per second rise and then fall: halving finds their peak.
    A piece that would not be better with all of its tokens at its lowest price is passed over.
    """
    rest_s = time.rest_s(num_sequences, proposes=proposes)
    best, best_rate = 0, 0.0
    for piece in time.pieces(num_sequences, num_sequences + most):

        def rate(rows: int, piece: Piece = piece) -> float:
            return (num_sequences + gain(rows - num_sequences)) / (piece.seconds(rows) + rest_s)

        low, high = piece.first, piece.last
        if num_sequences + gain(high - num_sequences) <= best_rate * (piece.seconds(low) + rest_s):
            continue
        if not piece.slope_s:
            low = high
        while low < high:
            middle = (low + high) // 2
            if rate(middle) < rate(middle + 1):
                low = middle + 1
            else:
                high = middle
        if rate(low) > best_rate:
            best, best_rate = low - num_sequences, rate(low)
    return best, best_rate
