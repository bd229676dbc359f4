"""What an engine tells about itself: one record for each step, each ended request, each rare event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from deepinfer_core.outputs import DraftMetrics, RequestMetrics

StepKind = Literal["prefill", "decode", "mixed", "idle"]
"""``idle`` is no step: nothing ran, but what runs or waits has changed (an abort, a deadline)."""

WaitReason = Literal["capacity", "grammar"]
"""Why a sequence waits: for cache memory or a place in the batch; for its grammar to be compiled."""

DEVICE_TIER = "device"
"""The tier of the prefix cache whose blocks need no copy before they are used."""

EventName = Literal[
    "step_failed", "numeric_error", "request_rejected", "grammar_failed", "tier_disabled", "no_draft_accepted"
]
"""A step raised; a row of the model's output was not finite; a limit of the queue turned a request away
(``details["reason"]`` is the setting that is the limit); a grammar could not be compiled in time or at all; a tier of
the prefix cache turned itself off; so many drafts were refused without one that stood that the draft module must be
wrong (``details["num_blocks"]``)."""

STEP_KINDS: tuple[str, ...] = get_args(StepKind)
WAIT_REASONS: tuple[str, ...] = get_args(WaitReason)
EVENT_NAMES: tuple[str, ...] = get_args(EventName)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What does not change while an engine lives; every sink is made with it.

    Attributes:
        model_name: What the model is called in metrics.
        engine: Number of the engine among those that serve the same model.
        block_tokens: Tokens of a cache block.
        num_blocks: Cache blocks that sequences can have.
        num_state_slots: Sequences that can have a state.
        max_num_batched_tokens: Rows that a step can have.
        prefix_caching: Whether prompts may begin with blocks of others.
    """

    model_name: str
    engine: int = 0
    block_tokens: int
    num_blocks: int
    num_state_slots: int
    max_num_batched_tokens: int
    prefix_caching: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step, as it was when its tokens had been taken. Counts are of this step alone, states are those after it.

    Attributes:
        time_s: When it ended, in seconds of the engine's monotonic clock.
        kind: What ran.
        num_sequences: Sequences in it.
        num_rows: Rows in it that belong to a sequence.
        num_padded_rows: Rows beside them that a captured graph adds to reach its size.
        num_wasted_rows: Those of ``num_rows`` whose sequence turned out to have ended before the step (overlap).
        num_prompt_tokens: Those of ``num_rows`` that are tokens of prompts, or are computed again after a preemption.
        num_generated_tokens: Tokens that it yielded.
        num_preemptions: Sequences that lost their cache memory to it.
        num_running: Sequences that have cache memory.
        num_waiting: Sequences that have none, by reason; a reason that is not there has none.
        num_blocks: Cache blocks that sequences can have.
        num_used_blocks: Those that sequences have; blocks that are only kept for later hits are free.
        num_state_slots: State slots that sequences can have.
        num_used_state_slots: Those that they have.
        prefix_queries: Tokens that were looked up in the prefix cache, by tier; each counts once, when its sequence
            is first scheduled.
        prefix_hits: Those that were found there, by tier.
        plan_s: Seconds in which the scheduler chose the rows.
        launch_s: Seconds in which inputs were made and work was given to the device.
        wait_s: Seconds in which the host waited for the device.
        apply_s: Seconds in which tokens were given to sequences and text was made.
        device_idle_s: Seconds between the device's last work before this step and its first of it; None if unknown.
        first_token_s: From arrival to first token, of each request whose first token this step yielded.
        inter_token_s: From the tokens before to those of this step, of each completion that had some already.
        num_draft_rows: Those of ``num_rows`` that are drafts to be verified.
        drafts: What became of them, and what was drafted behind it; None without speculative decoding.
        verify_s: Seconds of the device until every row had its token; None where it is not measured.
        draft_s: Seconds of the device behind that, in which drafts were made; likewise.
    """

    time_s: float
    kind: StepKind
    num_sequences: int = 0
    num_rows: int = 0
    num_padded_rows: int = 0
    num_wasted_rows: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_running: int = 0
    num_waiting: Mapping[WaitReason, int] = field(default_factory=dict[WaitReason, int])
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_state_slots: int = 0
    num_used_state_slots: int = 0
    prefix_queries: Mapping[str, int] = field(default_factory=dict[str, int])
    prefix_hits: Mapping[str, int] = field(default_factory=dict[str, int])
    plan_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    apply_s: float = 0.0
    device_idle_s: float | None = None
    first_token_s: tuple[float, ...] = ()
    inter_token_s: tuple[float, ...] = ()
    num_draft_rows: int = 0
    drafts: DraftMetrics | None = None
    verify_s: float | None = None
    draft_s: float | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of the host that went into it."""
        return self.plan_s + self.launch_s + self.wait_s + self.apply_s

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts that needed no computing, from all tiers."""
        return sum(self.prefix_hits.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionStats:
    """One completion of an ended request.

    Attributes:
        finish_reason: Why it ended.
        num_tokens: Tokens that it generated.
        decode_s: From its first token to its last; None without a token.
    """

    finish_reason: str
    num_tokens: int
    decode_s: float | None = None

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean time from token to token after the first (TPOT); None with fewer than two tokens."""
        return None if self.decode_s is None or self.num_tokens < 2 else self.decode_s / (self.num_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """One request, when it has ended.

    Attributes:
        request_id: Its id.
        num_prompt_tokens: Length of its prompt; ``times.num_cached_tokens`` of them needed no computing.
        times: When things happened to it.
        completions: Its completions, by index.
        max_tokens: The limit that it gave.
        grammar_compile_s: Seconds in which its grammar was compiled; None when it had none or found it compiled.
    """

    request_id: str
    num_prompt_tokens: int
    times: RequestMetrics
    completions: tuple[CompletionStats, ...]
    max_tokens: int
    grammar_compile_s: float | None = None

    @property
    def n(self) -> int:
        """Completions that it asked for."""
        return len(self.completions)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all completions."""
        return sum(completion.num_tokens for completion in self.completions)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsEvent:
    """Something that is rare and worth counting.

    Attributes:
        name: What it was.
        time_s: When, in seconds of the engine's monotonic clock.
        details: More about it, for sinks that keep records; no text of a user's.
    """

    name: EventName
    time_s: float
    details: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])
