"""A step on its way: what was launched, and how its tokens are read when they have arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.runtime.sampled_rows import SampledRows, ScoredRows
from deepinfer_core.scheduler.drafts import NO_DRAFTS, Proposal, StepTiming

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import Download, Timer
    from deepinfer_core.engine.logprobs import PromptScores
    from deepinfer_core.runtime.sampled_rows import SampledToken
    from deepinfer_core.runtime.sampling_tensors import SamplingRow
    from deepinfer_core.scheduler.step_plan import SequencePlan, StepPlan

_NUM_DRAFTED = 3
"""Tensors of ``runtime.drafter.DraftedBlocks``."""


@dataclass(slots=True)
class StepTimes:
    """Seconds of the host that went into one step; see ``StepStats``."""

    plan_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    apply_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScores:
    """Log-probabilities of a part of a prompt, on their way."""

    scores: PromptScores
    targets: Sequence[int]
    download: Download


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryTokens:
    """What a step yields for one of its entries.

    Attributes:
        sampled: Accepted drafts and the token behind them. Whatever is wrong with one is in its ``error``.
        num_verified: Drafts that were judged.
        num_accepted: How many of them stand.
        proposal: Drafts of what may follow.
    """

    sampled: Sequence[SampledToken]
    num_verified: int = 0
    num_accepted: int = 0
    proposal: Proposal = NO_DRAFTS


@dataclass(slots=True, kw_only=True)
class LaunchedStep:
    """A step on its way.

    Attributes:
        plan: What was planned.
        hidden: The rows that choose tokens, of each of ``plan.sampling_entries`` in turn ``[n, H]``: the last row of a
            prompt; the last token of a sequence and the drafts behind it.
        sampled: The entries that were sampled: those whose sequences had not ended by then.
        rows: What the sampler knew of their rows, entry by entry.
        download: Their tokens, on their way.
        drafts_download: Accepted drafts of each entry, and new drafts if there are any, likewise.
        scores: Log-probabilities of prompts, on their way.
        num_padded_rows: Rows that the device computed for nobody.
        times: Seconds of the host that went into it.
        timer: Marks at the begin, when every row has its token, and when drafts are made; None where nobody asks.
    """

    plan: StepPlan
    hidden: Tensor
    sampled: tuple[SequencePlan, ...] = ()
    num_padded_rows: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    rows: Sequence[SamplingRow] = ()
    download: Download | None = None
    drafts_download: Download | None = None
    scores: list[PendingScores] = field(default_factory=list["PendingScores"])
    timer: Timer | None = None

    def wait(self) -> None:
        """Block until everything has arrived."""
        for download in (self.download, self.drafts_download, *(part.download for part in self.scores)):
            if download is not None:
                download.wait()

    def tokens(self) -> list[EntryTokens]:
        """What each of ``sampled`` gets, once it has arrived.

        Log-probabilities of prompts go to the ``prompt_scores`` of their requests, once.
        """
        found = self._entry_tokens()
        arrived = [(part, ScoredRows.of(part.download.wait())) for part in self.scores]
        self.scores = []
        for part, rows in arrived:
            part.scores.add(rows.on_host(part.targets, part.scores.num_alternatives))
        return found

    def mark(self) -> None:
        """Note that the device has come so far."""
        if self.timer is not None:
            self.timer.mark()

    def device_seconds(self) -> tuple[float | None, float | None]:
        """Of verifying and of making drafts; None where nobody asks, or nothing was sampled."""
        found = self.timer.seconds() if self.timer is not None else ()
        return (found[0], found[1]) if len(found) == 2 else (None, None)  # of three marks

    def timing(self, lap_s: float | None) -> StepTiming | None:
        """What it took, for planners of drafts; None where nobody asks, and of steps that read prompts.

        Args:
            lap_s: Seconds since the tokens of the step before; None if there was none.
        """
        verify_s, _ = self.device_seconds()
        if verify_s is None or self.plan.prefills or not self.plan.decodes:
            return None
        return StepTiming(
            num_sequences=len(self.plan.decodes),
            num_rows=self.plan.num_tokens,
            verify_s=verify_s,
            rest_s=max(0.0, lap_s - verify_s) if lap_s is not None else math.nan,
            proposed=self.plan.proposes,
        )

    def _entry_tokens(self) -> list[EntryTokens]:
        if self.download is None:
            return []
        tokens = SampledRows.of(self.download.wait()).on_host(self.rows)
        if self.drafts_download is None:
            return [EntryTokens(sampled=(token,)) for token in tokens]
        counts, *drafted = self.drafts_download.wait()
        proposals = _proposals(drafted, len(self.sampled))
        found: list[EntryTokens] = []
        first = 0
        for entry, num_accepted, proposal in zip(self.sampled, counts.tolist(), proposals, strict=True):
            num_verified = len(entry.draft_token_ids)
            found.append(
                EntryTokens(
                    sampled=tokens[first : first + num_accepted + 1],
                    num_verified=num_verified,
                    num_accepted=num_accepted,
                    proposal=proposal,
                )
            )
            first += entry.num_sampled_rows
        return found


def _proposals(drafted: Sequence[Tensor], num_entries: int) -> list[Proposal]:
    """Drafts of each entry, up to the first that could not be drawn."""
    if len(drafted) < _NUM_DRAFTED:
        return [NO_DRAFTS] * num_entries
    found: list[Proposal] = []
    for tokens, confidence, logits in zip(*(tensor.tolist() for tensor in drafted), strict=True):
        count = next((place for place, token in enumerate(tokens) if token < 0), len(tokens))
        found.append(Proposal(tuple(tokens[:count]), tuple(confidence[:count]), tuple(logits[:count])))
    return found
