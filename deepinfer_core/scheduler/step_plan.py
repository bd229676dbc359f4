"""The frozen result of planning one step, and what comes back when it ran."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deepinfer_core.scheduler.sequence import FinishReason, Sequence


class StepKind(Enum):
    """The phase of a step; the graph runs one phase at a time, so a plan never mixes them."""

    PREFILL = "prefill"
    """Chunks of prompts, or of prompt and output after a preemption."""
    DECODE = "decode"
    """The last token of each sequence, with drafts to verify behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePlan:
    """The rows of one sequence in a step.

    Attributes:
        sequence: Whose rows; its blocks cover them, and stay as they are until the step ends.
        start: Position of the first row; the cache holds everything before it.
        num_tokens: Rows, at positions ``start`` to ``start + num_tokens - 1``. In a decode step those after the first
            are drafts, which ``sequence.token_ids`` does not contain.
        samples: True when the step yields tokens for this sequence.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool

    @property
    def token_ids(self) -> list[int]:
        """The rows' tokens without drafts."""
        return self.sequence.token_ids[self.start : self.start + self.num_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What to run next.

    Attributes:
        kind: All entries are of this kind.
        entries: In batch order, at least one.
        preempted: Sequences that lost their memory to this step; they wait, and nothing of theirs is lost.
    """

    kind: StepKind
    entries: tuple[SequencePlan, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return sum(entry.num_tokens for entry in self.entries)

    @property
    def sampling_entries(self) -> tuple[SequencePlan, ...]:
        """The entries that yield tokens; ``Scheduler.apply`` wants an outcome for each, in this order."""
        return tuple(entry for entry in self.entries if entry.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step yielded for one sequence.

    Attributes:
        token_ids: New tokens: one, or in a decode step accepted drafts and one more. None of them only when the
            sequence failed.
        finish_reason: Why it ends after the last of them, if the caller knows (a stop string, an error). What the
            scheduler sees itself (end of text, stop tokens, lengths) need not be said.
        stop_reason: Goes with ``finish_reason``.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
