"""What a request gives back, in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]
"""``stop``: end token or stop text; ``length``: token limit; ``abort``: by the caller; ``timeout``: its deadline
passed; ``error``: ``CompletionOutput.error`` says why."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token in the model's own distribution (before temperature and filters).

    Attributes:
        logprob: Natural logarithm of its probability.
        rank: Its place, from 1, best first.
        decoded_token: Its text.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: Number of the completion within its request.
        text: Decoded text; the stop text that ended it is cut off.
        token_ids: Generated tokens.
        logprobs: Per token: the token and its alternatives, when asked for.
        cumulative_logprob: Sum over the generated tokens, when asked for.
        finish_reason: Why it ended; None while it runs.
        stop_reason: The stop text or token that ended it; None for the end token.
        error: What went wrong, or "".
    """

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request in seconds of a monotonic clock; None where it did not get so far."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request: while it runs, a snapshot; in the end, its result.

    Attributes:
        request_id: Given by the caller or counted.
        prompt: The prompt's text, if it was given as text.
        prompt_token_ids: The prompt's tokens.
        outputs: One entry per completion.
        finished: True in the last record of the request.
        metrics: When it arrived, began, gave its first token and ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: Sequence[CompletionOutput] = field(default_factory=tuple)
    finished: bool = False
    metrics: RequestMetrics | None = None
