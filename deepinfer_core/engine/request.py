"""One request in the engine: what was asked, its sequences in the scheduler, its completions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deepinfer_core.observability.collect import TokenTimes, inter_token_latencies
from deepinfer_core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from deepinfer_core.runtime.sampling_tensors import NO_DRAFT, SamplingRow, completion_seed, has_penalty
from deepinfer_core.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from deepinfer_core.engine.completion import Completion
    from deepinfer_core.engine.draft_log import DraftCounts
    from deepinfer_core.engine.logprobs import PromptScores
    from deepinfer_core.outputs import PromptLogprobs
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.scheduler.sequence import Sequence as ScheduledSequence
    from deepinfer_core.scheduler.step_plan import SequencePlan


@dataclass(slots=True, kw_only=True)
class Request:
    """A request from its arrival to its last record.

    Attributes:
        request_id: Unique within the engine.
        prompt: Its text, if it was text.
        prompt_token_ids: Its tokens.
        params: How to sample.
        seed: Its own, or drawn when it arrived.
        sequences: The state of each completion in the scheduler, by index.
        completions: The output of each, by index.
        bad_words: Token sequences that the output must not hold.
        prompt_scores: Collects the log-probabilities of the prompt, if they were asked for.
        arrival_time: Monotonic seconds, as the other times.
        first_scheduled_time: When its first step was planned.
        first_token_time: When its first token was chosen.
        last_token_time: When its latest token was chosen.
        finished_time: When it ended.
        num_cached_tokens: Prompt tokens that needed no computing when it was first scheduled.
        token_times: When the tokens of each completion came, by index.
        grammar_compile_s: Seconds in which its grammar was compiled, if it waited for that.
        warnings: What the caller should know of how it is served.
        drafts: How its drafts fared; None without speculative decoding.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    sequences: tuple[ScheduledSequence, ...]
    completions: tuple[Completion, ...]
    bad_words: Sequence[Sequence[int]]
    prompt_scores: PromptScores | None
    arrival_time: float
    first_scheduled_time: float | None = field(default=None)
    first_token_time: float | None = field(default=None)
    last_token_time: float | None = field(default=None)
    finished_time: float | None = field(default=None)
    num_cached_tokens: int = 0
    token_times: tuple[TokenTimes, ...] = field(init=False)
    grammar_compile_s: float | None = field(default=None)
    warnings: tuple[str, ...] = ()
    drafts: DraftCounts | None = None
    _told_prompt: bool = field(default=False)
    _histories: tuple[_History, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.token_times = tuple(TokenTimes() for _ in self.completions)
        if has_penalty(self.params):
            prompt = array("q", self.prompt_token_ids)
            self._histories = tuple(_History(prompt) for _ in self.completions)

    @property
    def is_finished(self) -> bool:
        """True when every completion has ended."""
        return None not in [completion.finish_reason for completion in self.completions]

    def sampling_rows(self, index: int, drafts: Sequence[int] = ()) -> list[SamplingRow]:
        """What the sampler needs to choose the next token of a completion, and the one behind each draft.

        A row behind drafts counts on them: penalties, ``min_tokens``, ``bad_words`` and the grammar see them as output.
        """
        prompt: Sequence[int] = self.prompt_token_ids
        output: Sequence[int] = self.completions[index].token_ids
        if self._histories:
            prompt, output = self._histories[index].grown(output)
        first = SamplingRow(
            params=self.params,
            seed=completion_seed(self.seed, index),
            position=self.sequences[index].num_tokens,
            prompt_token_ids=prompt,
            output_token_ids=output,
            bad_words=self.bad_words,
            grammar=self.completions[index].grammar,
            draft=drafts[0] if drafts else NO_DRAFT,
        )
        return [first, *(self._row_behind(first, tuple(drafts), count) for count in range(1, len(drafts) + 1))]

    def _row_behind(self, first: SamplingRow, drafts: tuple[int, ...], count: int) -> SamplingRow:
        """The row behind the first ``count`` drafts of a block; whose output nobody reads keeps that of the first."""
        assumed = drafts[:count]
        is_read = bool(self._histories or first.bad_words or self.params.min_tokens)
        return replace(
            first,
            position=first.position + count,
            output_token_ids=_extended(first.output_token_ids, assumed) if is_read else first.output_token_ids,
            assumed=assumed,
            draft=drafts[count] if count < len(drafts) else NO_DRAFT,
        )

    def note_scheduled(self, entry: SequencePlan, now: float) -> None:
        """Take note of a step that was planned with one of its sequences."""
        if self.first_scheduled_time is None:
            self.first_scheduled_time = now
            self.num_cached_tokens = entry.start

    def note_token(self, now: float) -> None:
        """Take note of the time of a token."""
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now

    def settle(self, sequence: ScheduledSequence) -> bool:
        """Take note that the scheduler has ended a sequence; False when it is none of this request.

        Its reason counts where the completion has none of its own.
        """
        if self.sequences[sequence.index] is not sequence:
            return False
        if sequence.finish_reason is not None:
            self.completions[sequence.index].finish(sequence.finish_reason.value)
        return True

    def record(self) -> RequestOutput | None:
        """What to tell the caller now, in the way that was asked for; None for nothing."""
        kind, is_finished = self.params.output_kind, self.is_finished
        if kind == RequestOutputKind.FINAL_ONLY and not is_finished:
            return None
        if kind != RequestOutputKind.DELTA:
            outputs = [completion.output() for completion in self.completions]
            return self._output(outputs, self._prompt_logprobs(), is_finished)
        scores = None if self._told_prompt else self._prompt_logprobs()
        self._told_prompt = self._told_prompt or scores is not None
        news = [completion.news() for completion in self.completions]
        return self._output([record for record in news if record is not None], scores, is_finished)

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        return self.prompt_scores.complete() if self.prompt_scores is not None else None

    def _output(
        self, outputs: Sequence[CompletionOutput], prompt_logprobs: PromptLogprobs | None, is_finished: bool
    ) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=tuple(outputs),
            prompt_logprobs=prompt_logprobs,
            finished=is_finished,
            metrics=self.metrics(),
            warnings=self.warnings,
        )

    def metrics(self) -> RequestMetrics:
        """Its times so far; those between tokens once it has ended."""
        return RequestMetrics(
            arrival_time=self.arrival_time,
            first_scheduled_time=self.first_scheduled_time,
            first_token_time=self.first_token_time,
            last_token_time=self.last_token_time,
            finished_time=self.finished_time,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=sum(sequence.num_preemptions for sequence in self.sequences),
            num_output_tokens=max(len(completion.token_ids) for completion in self.completions),
            inter_token_latencies=inter_token_latencies(self.token_times) if self.is_finished else (),
            drafts=self.drafts.metrics() if self.drafts is not None else None,
        )


@dataclass(slots=True)
class _History:
    """The tokens of a completion that penalties count, as machine integers.

    They are counted in every step, and copying integers costs next to nothing where converting a list does not.
    """

    prompt: array[int]
    output: array[int] = field(default_factory=lambda: array("q"))

    def grown(self, output: Sequence[int]) -> tuple[array[int], array[int]]:
        """Prompt and output, after taking over what is new in a list of the output."""
        self.output.extend(output[len(self.output) :])
        return self.prompt, self.output


def _extended(tokens: Sequence[int], more: Sequence[int]) -> Sequence[int]:
    """A copy with more tokens at its end; machine integers stay such."""
    return tokens + array("q", more) if isinstance(tokens, array) else [*tokens, *more]
