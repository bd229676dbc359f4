"""Other ways to choose draft lengths, to compare with: DeepInfer's, and ours with one part made worse."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from itertools import accumulate

from deepinfer_core.scheduler.draft_budget import best_budget
from deepinfer_core.scheduler.draft_survival import RankedGains, Survivals
from deepinfer_core.scheduler.drafts import StepTiming
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_time import StepTimeModel

Search = Callable[[list[float], int, StepTimeModel], int]
"""Finds the number of drafts, given the chance of each, descending."""


def full_scan(ranked: list[float], num_sequences: int, time: StepTimeModel) -> int:
    """The best of all numbers."""
    return best_budget(RankedGains(ranked, num_sequences), len(ranked), num_sequences, time, proposes=True)


def early_stop(ranked: list[float], num_sequences: int, time: StepTimeModel) -> int:
    """The paper's theoretical form: stop at the first draft that does not pay (algorithm 1)."""
    rates = rates_of(list(accumulate(ranked, initial=float(num_sequences))), num_sequences, time)
    return next((drafts for drafts in range(len(rates) - 1) if rates[drafts + 1] <= rates[drafts]), len(rates) - 1)


def rates_of(expected: Sequences[float], num_sequences: int, time: StepTimeModel) -> list[float]:
    """Tokens per second with 0, 1, 2 and so on drafts."""
    return [
        tokens / time.seconds(num_sequences, num_sequences + drafts, proposes=True)
        for drafts, tokens in enumerate(expected)
    ]


class Variant:
    """Total by the generation of drafts that is ``lag`` older than the current ones, split by that of ``split_lag``.

    A lag of 0 for the total is not a fair planner: it biases the output (spec dspark 7.3).
    """

    def __init__(
        self,
        time: StepTimeModel,
        *,
        lag: int = 1,
        split_lag: int = 0,
        search: Search = full_scan,
        random_split: bool = False,
    ) -> None:
        self._time = time
        self._lag, self._split_lag, self._search = lag, split_lag, search
        self._random = random.Random(0) if random_split else None
        self._seen: dict[int, tuple[Sequence, list[tuple[float, ...]]]] = {}

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        generations = [self._generations(sequence) for sequence in sequences]
        budget = self._total([known[self._lag] for known in generations], limits, len(sequences))
        return self._split([known[self._split_lag] for known in generations], limits, min(budget, num_spare_rows))

    def proposes(self, num_sequences: int) -> bool:
        del num_sequences
        return True

    def reflect(self) -> None:
        """Everything is done when lengths are asked for."""

    def observe(self, timing: StepTiming) -> None:
        self._time.observe(timing)

    def _total(self, rows: list[tuple[float, ...]], limits: Sequences[int], num_sequences: int) -> int:
        pool = [chance for row, limit in zip(rows, limits, strict=True) for chance in row[:limit]]
        return self._search(sorted(pool, reverse=True), num_sequences, self._time)

    def _split(self, rows: list[tuple[float, ...]], limits: Sequences[int], budget: int) -> list[int]:
        """Of equals the first place first, then the first sequence."""
        keys = [(-row[j], j, r) for r, row in enumerate(rows) for j in range(limits[r])]
        if self._random is None:
            return _counted([r for *_, r in sorted(keys)[:budget]], len(rows))
        owners = [r for *_, r in keys]
        self._random.shuffle(owners)
        return _counted(owners[:budget], len(rows))

    def _generations(self, sequence: Sequence) -> list[tuple[float, ...]]:
        """Survivals of the current proposal and of those before it; what is not known is sure."""
        _, known = self._seen.get(id(sequence), (sequence, []))
        known = [sequence.proposal.survival, *known]
        if len(known) == 1 and sequence.older_survival:
            known.append(sequence.older_survival)
        self._seen[id(sequence)] = (sequence, known[:5])
        sure = (1.0,) * len(sequence.proposal.token_ids)
        return known + [sure] * 4


class DeepInferLengths(Variant):
    """As DeepInfer 0.1.0 does it (spec engine/04 4.2): unknown drafts are sure, and of equals the first sequence wins.

    It always proposes, and of a generation that is not known it expects everything.
    """

    def _generations(self, sequence: Sequence) -> list[tuple[float, ...]]:
        sure = (1.0,) * len(sequence.proposal.token_ids)
        return [sequence.proposal.survival, sequence.older_survival or sure]

    def _split(self, rows: list[tuple[float, ...]], limits: Sequences[int], budget: int) -> list[int]:
        keys = [(-row[j], r, j) for r, row in enumerate(rows) for j in range(limits[r])]
        return _counted([r for _, r, _ in sorted(keys)[:budget]], len(rows))


class BestNow:
    """The best lengths for the current confidences alone, which is wrong: a late draft decides about an early one."""

    def __init__(self, time: StepTimeModel) -> None:
        self._time = time

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        del num_spare_rows
        current = Survivals([sequence.proposal.survival for sequence in sequences], limits)
        return current.likeliest(full_scan(current.gains.ranked, len(sequences), self._time))

    def proposes(self, num_sequences: int) -> bool:
        del num_sequences
        return True

    def reflect(self) -> None:
        """Everything is done when lengths are asked for."""

    def observe(self, timing: StepTiming) -> None:
        del timing


def _counted(owners: list[int], num_sequences: int) -> list[int]:
    counts = [0] * num_sequences
    for owner in owners:
        counts[owner] += 1
    return counts
