"""How the drafts of a request, or of all, fared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.outputs import DraftMetrics
from deepinfer_core.speculation.observation import DraftObservation

if TYPE_CHECKING:
    from deepinfer_core.engine.launched_step import EntryTokens
    from deepinfer_core.engine.request import Request
    from deepinfer_core.scheduler.step_plan import SequencePlan


@dataclass(slots=True)
class DraftCounts:
    """Counted in place.

    Attributes:
        num_blocks: Blocks of which some draft was verified.
        num_proposed: Drafts that were made.
        verified: How often the first, second, ... draft of a block was verified.
        accepted: How often it became output.
    """

    num_blocks: int = 0
    num_proposed: int = 0
    verified: list[int] = field(default_factory=list[int])
    accepted: list[int] = field(default_factory=list[int])

    def add(self, *, num_proposed: int, num_verified: int, num_accepted: int) -> None:
        """Count what a step did for one sequence.

        Args:
            num_proposed: Drafts that were made behind it.
            num_verified: Drafts that were verified in it.
            num_accepted: The first of these that became output.
        """
        self.num_proposed += num_proposed
        if not num_verified:
            return
        self.num_blocks += 1
        _count(self.verified, num_verified)
        _count(self.accepted, num_accepted)

    def metrics(self) -> DraftMetrics:
        """A record of it."""
        width = len(self.verified)
        return DraftMetrics(
            num_blocks=self.num_blocks,
            num_proposed=self.num_proposed,
            verified=tuple(self.verified),
            accepted=(*self.accepted, *[0] * (width - len(self.accepted))),
        )


def _count(totals: list[int], length: int) -> None:
    """One more at each of the first places."""
    totals += [0] * (length - len(totals))
    for place in range(length):
        totals[place] += 1


class DraftLog:
    """Counts the drafts of an engine, and tells an observer what became of each block.

    Attributes:
        total: Of all requests.
        observe: Called for every block of which some draft was judged; None for nobody.
    """

    def __init__(self) -> None:
        self.total = DraftCounts()
        self.observe: Callable[[DraftObservation], None] | None = None

    def note(self, request: Request, entry: SequencePlan, found: EntryTokens, num_kept: int) -> None:
        """Take note of what a step yielded for a sequence, before its new proposal replaces the old one.

        Args:
            request: Whose sequence it is.
            entry: Its rows.
            found: What the step yielded.
            num_kept: Tokens that the completion took: those behind its end were never output.
        """
        if request.drafts is None:
            request.drafts = DraftCounts()
        num_accepted = min(found.num_accepted, num_kept)
        for counts in (self.total, request.drafts):
            counts.add(
                num_proposed=len(found.proposal.token_ids), num_verified=found.num_verified, num_accepted=num_accepted
            )
        num_judged = found.num_verified if num_kept > found.num_accepted else min(found.num_verified, num_kept)
        logits = entry.sequence.proposal.confidence_logits
        if self.observe is not None and num_judged and logits:
            self.observe(
                DraftObservation(
                    request_id=request.request_id,
                    confidence_logits=logits,
                    num_verified=num_judged,
                    num_accepted=num_accepted,
                )
            )
