"""Drafts of a sequence, and who decides how many of them a step verifies."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import nan
from operator import mul
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from deepinfer_core.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one pass of the draft module proposes as the next tokens of a sequence.

    Attributes:
        token_ids: Drafts in order.
        confidence: Of each draft: the estimated chance that it is accepted when all before it were. It was made before
            the draft was drawn, so that choosing lengths by it keeps the law of the output (spec dspark 7.2).
        confidence_logits: The same before calibration and sigmoid, for who calibrates; may be left out.
        survival: The chance that each draft and all before it are accepted; never increases. NaN from the first
            confidence on that is NaN or above 1, which no chance is.
    """

    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    confidence_logits: tuple[float, ...] = ()
    survival: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        chances = self.confidence
        if chances and max(chances) > 1.0:
            chances = [chance if chance <= 1.0 else nan for chance in chances]
        object.__setattr__(self, "survival", tuple(accumulate(chances, mul)))

    def worthless_behind(self, end_token_ids: Collection[int]) -> Proposal:
        """The same, with confidence 0 in drafts behind the first one that ends the sequence: they never become output.

        This looks at the drafts before a draft, never at itself or later ones, so the law of the output stays.
        """
        end = next((place for place, token in enumerate(self.token_ids) if token in end_token_ids), None)
        if end is None:
            return self
        kept = self.confidence[: end + 1]
        return replace(self, confidence=(*kept, *[0.0] * (len(self.confidence) - len(kept))))


NO_DRAFTS = Proposal((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """What a decode step took, for planners that learn from it.

    Attributes:
        num_sequences: Sequences of the step.
        num_rows: Their rows, padding not counted.
        verify_s: Seconds of the device until every row had its token: forward pass and sampling.
        rest_s: Seconds that it took besides: the draft module, and the host while the device waited for it. NaN where
            nobody knows.
        proposed: Whether the draft module ran behind it.
    """

    num_sequences: int
    num_rows: int
    verify_s: float
    rest_s: float
    proposed: bool


class DraftPlanner(Protocol):
    """Decides how many drafts are verified, and whether new ones are made. Called by the scheduler only."""

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """How many drafts of each sequence the next step verifies.

        A decision about draft k of a sequence may depend on confidences of its drafts 1 to k, on other sequences, and
        on anything that was known before its drafts were drawn; never on confidences of its later drafts: the output
        would be biased (spec dspark 7).

        Args:
            sequences: Decoding sequences in the policy's order; ``proposal`` and ``older_survival`` say what is known.
            limits: Drafts of each that may be verified at most; never more than it has.
            num_spare_rows: Drafts in all that the step has rows for.

        Returns:
            For each sequence a number of drafts from 0 to its limit, at most ``num_spare_rows`` in all.
        """
        ...

    def proposes(self, num_sequences: int) -> bool:
        """Whether the draft module runs behind a step that yields tokens for so many sequences."""
        ...

    def reflect(self) -> None:
        """Called while the device works: time for what the next decision needs and nobody waits for now."""
        ...

    def observe(self, timing: StepTiming) -> None:
        """Take note of how long a decode step took."""
        ...


class VerifyAll:
    """Verifies every draft that is there, as far as rows last; makes new ones after every step, or never."""

    def __init__(self, *, proposes: bool = True) -> None:
        self._proposes = proposes

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """The limits, until no row is left."""
        del sequences
        chosen: list[int] = []
        for limit in limits:
            chosen.append(min(limit, num_spare_rows))
            num_spare_rows -= chosen[-1]
        return chosen

    def proposes(self, num_sequences: int) -> bool:
        """The same for every step."""
        del num_sequences
        return self._proposes

    def reflect(self) -> None:
        """Nothing to learn."""

    def observe(self, timing: StepTiming) -> None:
        """Nothing to learn."""
