"""What a request gives back, in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
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
        decoded_token: Its text; None where there is none (no tokenizer, or ``detokenize`` off).
    """

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = Sequence[Mapping[int, Logprob] | None]
"""One entry for each token of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt: all of it so far, or with ``output_kind="delta"`` what is new.

    Attributes:
        index: Number of the completion within its request.
        text: Decoded text; without what ended it, unless that was asked for.
        token_ids: Generated tokens, with the one that ended it.
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
class DraftMetrics:
    """How the drafts of a request, or of several together, fared (spec dspark 3.3).

    Attributes:
        num_blocks: Blocks of drafts, one for each sequence and step, of which some were verified.
        num_proposed: Drafts that were made.
        verified: How often the first, second, ... draft of a block was verified.
        accepted: How often it became output; ``accepted[k] / verified[k]`` is the share of those verified that
            survived. What stands behind the end of a completion does not count.
    """

    num_blocks: int = 0
    num_proposed: int = 0
    verified: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    @property
    def num_verified(self) -> int:
        """Drafts that were verified."""
        return sum(self.verified)

    @property
    def num_accepted(self) -> int:
        """Drafts that became output."""
        return sum(self.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts of those that were verified; None when none were."""
        return self.num_accepted / self.num_verified if self.num_verified else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens of a step with drafts on average, the one behind the accepted drafts included; None without any."""
        return 1 + self.num_accepted / self.num_blocks if self.num_blocks else None

    def __add__(self, other: DraftMetrics) -> DraftMetrics:
        """Both together."""
        return DraftMetrics(
            num_blocks=self.num_blocks + other.num_blocks,
            num_proposed=self.num_proposed + other.num_proposed,
            verified=_sums(self.verified, other.verified),
            accepted=_sums(self.accepted, other.accepted),
        )

    def __sub__(self, earlier: DraftMetrics) -> DraftMetrics:
        """What came since an earlier state of the same counts."""
        return DraftMetrics(
            num_blocks=self.num_blocks - earlier.num_blocks,
            num_proposed=self.num_proposed - earlier.num_proposed,
            verified=_sums(self.verified, tuple(-number for number in earlier.verified)),
            accepted=_sums(self.accepted, tuple(-number for number in earlier.accepted)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened to one request, in seconds of a monotonic clock; None where it did not get so far.

    Attributes:
        arrival_time: It was added.
        first_scheduled_time: The first step with it was planned.
        first_token_time: Its first token was chosen.
        last_token_time: Its latest token was chosen.
        finished_time: It ended.
        num_cached_tokens: Tokens of its prompt that were in the cache when it was first scheduled.
        num_preemptions: How often it lost its cache memory and was computed anew.
        num_output_tokens: Tokens of its longest completion so far; 0 also where the engine does not say.
        inter_token_latencies: Seconds between tokens that came one after the other (ITL), of all completions, one
            completion after the other. Tokens that came together count once. In the last record only, and empty where
            the engine does not take them down.
        drafts: How its drafts fared; None without speculative decoding.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_output_tokens: int = 0
    inter_token_latencies: tuple[float, ...] = ()
    drafts: DraftMetrics | None = None

    @property
    def queue_time_s(self) -> float | None:
        """From its arrival to its first step."""
        return _between(self.arrival_time, self.first_scheduled_time)

    @property
    def time_to_first_token_s(self) -> float | None:
        """From its arrival to its first token."""
        return _between(self.arrival_time, self.first_token_time)

    @property
    def prefill_time_s(self) -> float | None:
        """From its first step to its first token."""
        return _between(self.first_scheduled_time, self.first_token_time)

    @property
    def decode_time_s(self) -> float | None:
        """From its first token to its latest."""
        return _between(self.first_token_time, self.last_token_time)

    @property
    def inference_time_s(self) -> float | None:
        """From its first step to its latest token."""
        return _between(self.first_scheduled_time, self.last_token_time)

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean time from token to token after the first (TPOT); None with fewer than two.

        With several completions the longest is counted, over the time in which any of them had tokens.
        """
        decode = self.decode_time_s
        return None if decode is None or self.num_output_tokens < 2 else decode / (self.num_output_tokens - 1)

    @property
    def total_time_s(self) -> float | None:
        """From its arrival to its end."""
        return _between(self.arrival_time, self.finished_time)


def _sums(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one + other for one, other in zip_longest(first, second, fillvalue=0))


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request: while it runs, a snapshot; in the end, its result.

    Attributes:
        request_id: Given by the caller or counted.
        prompt: The prompt's text, if it was given as text.
        prompt_token_ids: The prompt's tokens.
        outputs: One entry per completion, in the order of their indices; of deltas, only those with news.
        prompt_logprobs: When asked for: None for the first token of the prompt, which nothing predicts, then for each
            token a mapping with it and its alternatives. None until the prompt is computed; of deltas, in one of them.
        finished: True in the last record of the request.
        metrics: Its times; None when it was refused.
        warnings: What the caller should know of how it was served, such as constraints that nothing enforces.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: Sequence[CompletionOutput] = field(default_factory=tuple)
    prompt_logprobs: PromptLogprobs | None = None
    finished: bool = False
    metrics: RequestMetrics | None = None
    warnings: Sequence[str] = ()
