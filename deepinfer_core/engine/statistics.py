"""Counters of an engine, and a snapshot of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer_core.outputs import DraftMetrics, FinishReason


@dataclass(slots=True, kw_only=True)
class Counters:
    """What happened since the engine was made; counted in place.

    Attributes:
        num_requests: Requests that were taken in.
        num_prompt_tokens: Tokens of their prompts.
        num_generated_tokens: Tokens that were chosen for them.
        num_numeric_errors: Rows of the model's output that were not finite; each ended a completion or a request.
        num_failed_steps: Steps that raised an error; each ended the completions that were in it.
    """

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_numeric_errors: int = 0
    num_failed_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The state of an engine at one moment. A request with ``n`` completions counts as ``n`` sequences.

    Attributes:
        num_requests: Requests that were taken in since the start.
        num_unfinished_requests: Those that have not ended.
        num_waiting: Sequences that wait for cache memory.
        num_running: Sequences that have some.
        num_finished: Sequences that ended since the start, by reason.
        num_prompt_tokens: Tokens of all prompts that were taken in.
        num_generated_tokens: Tokens that were chosen.
        num_steps: Steps that were planned.
        num_failed_steps: Those that raised an error.
        num_preemptions: Times that a sequence lost its cache memory and began anew.
        num_numeric_errors: Rows of the model's output that were not finite.
        num_blocks: Cache blocks in all.
        num_free_blocks: Those that nobody uses.
        num_state_slots: State slots in all.
        num_free_state_slots: Those that nobody uses.
        drafts: How drafts fared since the start; None without speculative decoding.
    """

    num_requests: int
    num_unfinished_requests: int
    num_waiting: int
    num_running: int
    num_finished: Mapping[FinishReason, int]
    num_prompt_tokens: int
    num_generated_tokens: int
    num_steps: int
    num_failed_steps: int
    num_preemptions: int
    num_numeric_errors: int
    num_blocks: int
    num_free_blocks: int
    num_state_slots: int
    num_free_state_slots: int
    drafts: DraftMetrics | None = None
