"""Counters of a scheduler, and a snapshot of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.step_plan import StepKind, StepPlan


@dataclass(slots=True)
class Totals:
    """What happened since the scheduler was made; counted in place.

    Attributes:
        num_steps: Steps planned, by kind.
        num_tokens: Rows planned, by kind.
        num_finished: Sequences that ended, by reason.
    """

    num_steps: Counter[StepKind] = field(default_factory=Counter[StepKind])
    num_tokens: Counter[StepKind] = field(default_factory=Counter[StepKind])
    num_finished: Counter[FinishReason] = field(default_factory=Counter[FinishReason])

    def count(self, plan: StepPlan) -> None:
        """Add a step that was planned."""
        self.num_steps[plan.kind] += 1
        self.num_tokens[plan.kind] += plan.num_tokens

    def copy(self) -> Totals:
        """The same numbers in counters of their own."""
        return Totals(
            num_steps=self.num_steps.copy(),
            num_tokens=self.num_tokens.copy(),
            num_finished=self.num_finished.copy(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """The state of a scheduler at one moment.

    Attributes:
        num_waiting: Sequences without memory.
        num_running: Admitted sequences.
        num_queued_tokens: Tokens that waiting sequences have to compute.
        num_free_blocks: Cache blocks that nobody refers to.
        num_free_state_slots: State slots that nobody refers to.
        num_leases: Open leases of transfers.
        num_preemptions: Times that a sequence lost its memory, since the start.
        totals: Counters since the start.
    """

    num_waiting: int
    num_running: int
    num_queued_tokens: int
    num_free_blocks: int
    num_free_state_slots: int
    num_leases: int
    num_preemptions: int
    totals: Totals
