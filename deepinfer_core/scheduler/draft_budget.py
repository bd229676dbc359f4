"""How many drafts pay: a fixed number, or what promises most tokens per second (spec dspark 5)."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from math import ceil, inf

from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler.draft_survival import Gains, PastDrafts, RankedGains, Survivals, credible_survival
from deepinfer_core.scheduler.drafts import StepTiming, VerifyAll
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_time import StepTimeModel

log = get_logger(__name__)

PROBE_LOSS = 0.004
"""Share of the time that probing may take at most."""
REVIEW_INTERVAL = 8
"""Steps after which it is asked again whether drafting pays, once the answer has been the same for as many."""
EXPLORE_INTERVAL = 16
"""Steps from one without drafts to the next, while nobody knows what the draft module takes, or such steps."""
DOUBT = 1.35
"""Where drafts promise to be so many times better or less, steps without them must have been seen."""
_Question = tuple[RankedGains, int, int, bool]
"""What drafts promise, how many can be verified, sequences, and whether new ones are made."""


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

    def reflect(self) -> None:
        """Nothing to learn."""

    def observe(self, timing: StepTiming) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class _LastStep:
    """What is remembered of the last step with drafts.

    Attributes:
        rows: Survivals of its drafts by sequences, those that may be verified or not.
        limits: Drafts of each that could be verified.
        current: The same as numbers.
        num_sequences: Sequences of the step, those without drafts included.
        is_new: Nothing was learned from it yet.
    """

    rows: list[tuple[float, ...]]
    limits: Sequences[int]
    current: Survivals
    num_sequences: int
    is_new: bool = True


class AdaptiveLengths:
    """Verifies as many drafts in all as promise most tokens per second, and of these the likeliest.

    The total comes from the drafts before the current ones, whose fate is settled, and from measured times; the
    current drafts compete for it by the chance that they and all before them are accepted. So no decision about a draft
    looks at what was estimated for a later one of its sequence, and the output keeps the law of the model.

    Where drafting costs more than it yields it stops, but for a probe from time to time.
    """

    def __init__(self, step_time: StepTimeModel, *, probe_interval: int = 64) -> None:
        """Start with no experience: drafts are expected to be accepted until confidences say otherwise.

        Args:
            step_time: What steps take; it learns from ``observe``.
            probe_interval: Steps between drafts that are made though they do not pay, so that it is noticed when they
                would. Longer where the draft module is slow: probes never take more than ``PROBE_LOSS`` of the time.

        Raises:
            ConfigError: ``probe_interval`` is below 1.
        """
        if probe_interval < 1:
            raise ConfigError(f"probe_interval={probe_interval} is below 1; give a number of steps", "draft lengths")
        self._time = step_time
        self._probe_interval = probe_interval
        self._past = PastDrafts()
        self._last: _LastStep | None = None
        self._foreseen: tuple[_Question, int] | None = None
        self._pays, self._advantage = True, inf
        self._asked_for, self._age = 0, 0
        self._num_alike = 0
        self._is_suspicious = False

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """The total by the older generation, the share of each sequence by the current one."""
        self.reflect()
        members, open_limits = sequences, limits
        if not all(limits):
            members = [sequence for sequence, limit in zip(sequences, limits, strict=True) if limit]
            open_limits = [limit for limit in limits if limit]
        if not members:
            return [0] * len(sequences)
        gains = self._older([member.older_survival for member in members], open_limits)
        most = min(len(gains.ranked), max(num_spare_rows, 0))
        budget = self._budget(gains, most, len(sequences))
        rows = [member.proposal.survival for member in members]
        current = self._credible(rows, open_limits)
        self._last = _LastStep(rows, open_limits, current, len(sequences))
        chosen = current.likeliest(min(budget, current.num_possible))
        if len(chosen) == len(sequences):
            return chosen
        rest = iter(chosen)
        return [next(rest) if limit else 0 for limit in limits]

    def reflect(self) -> None:
        """Learn from the drafts of the last step, and find the next total for the case that nobody comes or goes."""
        last = self._last
        if last is None or not last.is_new:
            return
        last.is_new = False
        gains = last.current.gains
        self._past.learn(last.current)
        question = (gains, len(gains.ranked), last.num_sequences, self._pays)
        self._foreseen = question, self._budget(*question[:3])

    def proposes(self, num_sequences: int) -> bool:
        """Whether it pays by what is known of earlier drafts, or it is time to see how things are."""
        self._age += 1
        is_settled = self._num_alike >= REVIEW_INTERVAL
        if num_sequences != self._asked_for or not is_settled or self._age >= REVIEW_INTERVAL:
            self._asked_for, self._age = num_sequences, 0
            self._advantage = self._drafting_advantage(num_sequences) if num_sequences else 0.0
        pays = self._advantage > 1.0
        self._num_alike = self._num_alike + 1 if pays is self._pays else 1
        self._pays = pays
        if pays:
            return self._num_alike % EXPLORE_INTERVAL != 0 or not self._is_in_doubt(num_sequences)
        return self._num_alike % self._interval(num_sequences) == 0

    def observe(self, timing: StepTiming) -> None:
        """Take note of how long a decode step took."""
        self._time.observe(timing)

    def _older(self, rows: list[tuple[float, ...]], limits: Sequences[int]) -> RankedGains:
        """Accepted drafts to expect by the older generation; what is not known of it is what was usual."""
        last = self._last
        if last is not None and rows == last.rows and limits == last.limits:
            return last.current.gains  # as a rule they were the current ones just before
        complete = self._past.complete
        rows = [row if len(row) == limit else complete(row, limit) for row, limit in zip(rows, limits, strict=True)]
        return self._credible(rows, limits).gains

    def _budget(self, gains: RankedGains, most: int, num_sequences: int) -> int:
        """Drafts in all: of every possible total the one that promises most tokens per second."""
        if self._foreseen is not None and self._foreseen[0] == (gains, most, num_sequences, self._pays):
            return self._foreseen[1]
        return best_budget(self._past.steady(gains), most, num_sequences, self._time, proposes=self._pays)

    def _credible(self, rows: list[tuple[float, ...]], limits: Sequences[int]) -> Survivals:
        """Chances of drafts; those that are none, and those behind them, count as 0."""
        found = Survivals(rows, limits)
        if found.is_credible:
            return found
        if not self._is_suspicious:
            log.warning(
                "the draft module gave a confidence that is not a number from 0 to 1; such drafts, and those behind "
                "them, count as certain to be rejected: check the weights of the confidence head"
            )
        self._is_suspicious = True
        return Survivals([credible_survival(row) for row in rows], limits)

    def _drafting_advantage(self, num_sequences: int) -> float:
        """Tokens per second that the usual survivals promise, over those without drafts."""
        if not self._past.num_drafts:
            return inf
        most = num_sequences * self._past.num_drafts
        _, best = _best_total(self._past.gains(num_sequences), most, num_sequences, self._time, proposes=True)
        return best * self._time.seconds(num_sequences, num_sequences, proposes=False) / num_sequences

    def _is_in_doubt(self, num_sequences: int) -> bool:
        """Whether drafts are made although steps without them might turn out to be better."""
        if not self._time.knows_draft(num_sequences):
            return True
        return self._advantage < DOUBT and not self._time.knows_size(num_sequences)

    def _interval(self, num_sequences: int) -> int:
        """Steps from one probe to the next."""
        step_s = self._time.seconds(num_sequences, num_sequences, proposes=False)
        return max(self._probe_interval, ceil(self._time.draft_s(num_sequences) / (PROBE_LOSS * step_s)))


def best_budget(gains: Gains, most: int, num_sequences: int, time: StepTimeModel, *, proposes: bool) -> int:
    """Of all numbers of drafts one that promises most tokens per second.

    Every number is considered: steps get dearer in jumps, so that one more draft may not pay where many more do
    (spec dspark 5.3).

    Args:
        gains: Accepted drafts to expect.
        most: Drafts that can be verified.
        num_sequences: Rows that are not drafts.
        time: What steps take.
        proposes: Whether the draft module runs behind the step.
    """
    return _best_total(gains, most, num_sequences, time, proposes=proposes)[0]


def _best_total(
    gains: Gains, most: int, num_sequences: int, time: StepTimeModel, *, proposes: bool
) -> tuple[int, float]:
    """The number of drafts up to ``most`` that promises most tokens per second, and how many these are.

    First the ends of the ranges of rows in which the price is a straight line are compared; where prices are stairs,
    that is all. Then every range that could be better inside, with all of its tokens at its lowest price, is searched:
    a draft is worth its row if it adds more tokens than the time of the row yields at the best rate so far; the number
    of these has a better rate, or none has (Dinkelbach's method for fractional programs; two or three rounds as a
    rule).
    """
    rest_s = time.rest_s(num_sequences, proposes=proposes)
    pieces = time.pieces(num_sequences, num_sequences + most)
    tokens = [num_sequences + gains.of(piece.last - num_sequences) for piece in pieces]
    rates = [total / (piece.seconds(piece.last) + rest_s) for piece, total in zip(pieces, tokens, strict=True)]
    rate = max(rates)
    best = pieces[rates.index(rate)].last - num_sequences
    for piece, total in zip(pieces, tokens, strict=True):
        if not piece.slope_s or total <= rate * (piece.lowest_s + rest_s):
            continue
        fewest, last = piece.num_free - num_sequences, piece.last - num_sequences
        while True:
            drafts = min(max(gains.worth(rate * piece.slope_s), fewest), last)
            found = (num_sequences + gains.of(drafts)) / (piece.seconds(num_sequences + drafts) + rest_s)
            if found <= rate:
                break
            best, rate = drafts, found
    return best, rate
