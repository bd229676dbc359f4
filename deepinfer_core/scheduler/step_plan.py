"""The frozen result of planning one step, and what comes back when it ran."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deepinfer_core.scheduler.drafts import NO_DRAFTS, Proposal
from deepinfer_core.scheduler.sequence import FinishReason, Sequence


class StepKind(Enum):
    """What a step has rows of. The graph runs one phase at a time: a mixed step is two passes and one sampling."""

    PREFILL = "prefill"
    """Chunks of prompts, or of prompt and output after a preemption."""
    DECODE = "decode"
    """The last token of each sequence, with drafts to verify behind it."""
    MIXED = "mixed"
    """Both."""


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """A payload of an outer tier of the prefix cache, to be written to the device.

    Attributes:
        place: Block id, or state slot.
        payload: Its bytes.
        is_slot: Which of the two.
    """

    place: int
    payload: bytes
    is_slot: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequencePlan:
    """The rows of one sequence in a step.

    Attributes:
        sequence: Whose rows; its blocks cover them, and stay as they are until the step ends.
        start: Position of the first row; the cache holds everything before it.
        num_tokens: Rows, at positions ``start`` to ``start + num_tokens - 1``. In a decode step those after the first
            are drafts, which ``sequence.token_ids`` does not contain.
        samples: True when the step yields tokens for this sequence.
        is_prefill: True for rows of a prompt, False for the last token and drafts.
        is_pending: True for a row whose token a step in flight yields; the host does not know it yet.
        life: The sequence's ``num_preemptions`` when the step was planned.
        window_start: First position that has window keys; above 0 where a cached prefix is replayed from there.
        store_from: Entries that close before this position are in the cache already and must stay as they are.
        draft_token_ids: Tokens of the rows behind the first one of a decode step.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    is_prefill: bool
    is_pending: bool
    life: int
    window_start: int = 0
    store_from: int = 0
    draft_token_ids: tuple[int, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The rows' tokens without drafts, as far as the host knows them."""
        return self.sequence.token_ids[self.start : self.start + self.num_tokens]

    @property
    def num_sampled_rows(self) -> int:
        """Rows that choose a token, the last ones: one, and one behind each draft. 0 where it samples nothing."""
        return 1 + len(self.draft_token_ids) if self.samples else 0

    @property
    def has_drafts(self) -> bool:
        """True when rows behind the first one are guesses."""
        return bool(self.draft_token_ids)

    @property
    def holds_memory(self) -> bool:
        """False once the sequence lost the memory that this step was planned with."""
        return self.life == self.sequence.num_preemptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """What to run next.

    Attributes:
        decodes: Entries of running sequences, in batch order.
        prefills: Entries with rows of prompts, which run behind them; one of the two is not empty.
        preempted: Sequences that lost their memory to this step; they wait, and nothing of theirs is lost.
        loads: Payloads to write to the device before the step runs.
        restores: State slots to copy behind that, ``(source, destination)``.
        snapshots: The same behind the step.
        proposes: The draft module runs behind it, for every sequence that gets tokens.
    """

    decodes: tuple[SequencePlan, ...] = ()
    prefills: tuple[SequencePlan, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    loads: tuple[CacheLoad, ...] = ()
    restores: tuple[tuple[int, int], ...] = ()
    snapshots: tuple[tuple[int, int], ...] = ()
    proposes: bool = False

    @property
    def kind(self) -> StepKind:
        """What it has rows of."""
        if not self.prefills:
            return StepKind.DECODE
        return StepKind.MIXED if self.decodes else StepKind.PREFILL

    @property
    def entries(self) -> tuple[SequencePlan, ...]:
        """All entries in the order in which they run."""
        return self.decodes + self.prefills

    @property
    def is_speculative(self) -> bool:
        """True when it verifies or makes drafts; the next plan must know how many stand, and which there are."""
        return self.proposes or any(entry.has_drafts for entry in self.decodes)

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
        proposal: Drafts of what may follow the last of them.
        is_distrusted: The model's results for it were no numbers: what it has read or written is good for nobody.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    proposal: Proposal = NO_DRAFTS
    is_distrusted: bool = False
