"""Who is served first, and what the next step is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a policy may look at when it chooses the kind of a step.

    Attributes:
        now: The time that ``Scheduler.plan`` was given.
        num_waiting: Sequences without memory.
        num_prefilling: Admitted sequences with tokens still to compute.
        num_decoding: Sequences that could take part in a decode step.
        num_waiting_tokens: Tokens that waiting sequences have to compute; counted where prompts may be delayed, else 0.
        longest_wait_s: Seconds since the arrival of the waiting sequence that came first; likewise.
        num_prefill_steps_in_a_row: Prefill steps since the last decode step.
        num_decode_steps_in_a_row: Decode steps since the last prefill step.
    """

    now: float
    num_waiting: int
    num_prefilling: int
    num_decoding: int
    num_waiting_tokens: int
    longest_wait_s: float
    num_prefill_steps_in_a_row: int
    num_decode_steps_in_a_row: int


class SchedulingPolicy(Protocol):
    """The decisions that are a matter of taste; whatever it answers, the scheduler keeps its invariants.

    All answers depend on the arguments alone, so that the same arrivals give the same steps.
    """

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        """Its place in the one order of admission and preemption, asked once, when it arrives.

        The smallest rank is admitted first, the largest is preempted first. Ranks are distinct: end them with
        ``sequence.arrival``. Only finitely many later arrivals may get a smaller rank, or the sequence may starve.
        """
        ...

    def kind(self, load: Load) -> StepKind:
        """Which kind of step is tried first; the others follow if that one has nothing to do."""
        ...

    def chunk_size(self, sequence: Sequence, num_free_rows: int) -> int:
        """Rows of a prefill step that a sequence gets, at most ``num_free_rows`` and what it has left to compute.

        0 ends the step before this sequence; a sequence that is offered a whole step must get some of it. A waiting one
        is asked about twice: with all its tokens, and if it got any rows, without those that the prefix cache has; then
        it must get some again.
        """
        ...


@dataclass(frozen=True, slots=True)
class DefaultPolicy:
    """First come first served with priorities; prefill first, but running sequences never wait long.

    Attributes:
        config: Where the knobs are.
    """

    config: SchedulerConfig

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        """Order by arrival, where each step of priority counts like so many arrivals; that bounds overtaking."""
        return sequence.arrival + sequence.priority * self.config.arrivals_per_priority, sequence.arrival

    def kind(self, load: Load) -> StepKind:
        """A larger decode batch is worth a short wait of those who are in it; an idle engine starts at once."""
        if load.num_prefill_steps_in_a_row >= self.config.max_prefill_steps_in_a_row or self.may_gather(load):
            return StepKind.DECODE
        return StepKind.PREFILL

    def may_gather(self, load: Load) -> bool:
        """True while new prompts may wait for more of them: others run, none has waited long, no step is full yet."""
        return (
            load.num_decoding > 0
            and not load.num_prefilling
            and 1000 * load.longest_wait_s < self.config.max_prefill_delay_ms
            and load.num_waiting_tokens < self.config.max_num_batched_tokens
        )

    def chunk_size(self, sequence: Sequence, num_free_rows: int) -> int:
        """All that is left of the prompt, or as much of it as fits if prompts may be split.

        What was preempted may be split in any case: output made it longer than what was checked at arrival. That looks
        at all its tokens, so that a hit in the prefix cache does not change the answer from some rows to none.
        """
        num_free_rows = min(num_free_rows, self.config.max_chunk_tokens or num_free_rows)
        if sequence.num_uncomputed_tokens <= num_free_rows:
            return sequence.num_uncomputed_tokens
        may_split = self.config.chunked_prefill or sequence.num_tokens > self.config.max_num_batched_tokens
        return num_free_rows if may_split else 0


@dataclass(frozen=True, slots=True)
class MixedPolicy(DefaultPolicy):
    """Every step decodes all running sequences, and spends the rows that are left on prompts.

    Answers flow evenly while prompts are read; ``max_chunk_tokens`` bounds how much a prompt slows them down.
    """

    def kind(self, load: Load) -> StepKind:
        """Both, unless prompts may wait for others."""
        return StepKind.DECODE if self.may_gather(load) else StepKind.MIXED


POLICIES: dict[str, type[DefaultPolicy]] = {"alternating": DefaultPolicy, "mixed": MixedPolicy}
"""What ``SchedulerConfig.step_policy`` names."""
