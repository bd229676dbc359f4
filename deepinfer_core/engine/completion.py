"""One completion as it grows: tokens, text, and the rules that end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.engine.logprobs import with_text
from deepinfer_core.engine.stop_text import StopText
from deepinfer_core.engine.text_stream import TextStream
from deepinfer_core.outputs import CompletionOutput, FinishReason, Logprob

if TYPE_CHECKING:
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.runtime.sampled_rows import SampledToken
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.structured_output.matcher import GrammarMatcher


class Completion:
    """Applies the end token, stop tokens, stop texts and ``max_tokens``, in this order.

    The token that ends a completion is among its ids. Its text, or the stop text, is in the text only when the
    parameters ask for that.

    Attributes:
        token_ids: What was generated.
        finish_reason: Why it ended, None before that.
        error: What went wrong, or "".
        grammar: Where the output stands in the grammar that it must follow; None without one.
        end_token_ids: Tokens that end it.
    """

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None, eos_token_id: int) -> None:
        """Begin empty; without a tokenizer, or with ``detokenize`` off, there is no text."""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self.end_token_ids = frozenset(params.stop_token_ids) | (set() if params.ignore_eos else {eos_token_id})
        self._index, self._params, self._eos_token_id = index, params, eos_token_id
        self._tokenizer = tokenizer if params.detokenize else None
        self._stream = (
            TextStream(self._tokenizer, skip_special_tokens=params.skip_special_tokens) if self._tokenizer else None
        )
        self._stops = StopText(params.stop)
        self.grammar: GrammarMatcher | None = None
        self._text = ""
        self._stop_reason: str | int | None = None
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative = 0.0
        self._num_told_tokens, self._num_told_characters, self._told_end = 0, 0, False

    def constrain(self, grammar: GrammarMatcher) -> None:
        """Make the output follow a grammar, from its first token on."""
        self.grammar = grammar

    def push(self, sampled: SampledToken) -> None:
        """Take the next sampled token; sets ``finish_reason`` when it is the last."""
        error = self._grammar_error(sampled) or sampled.error
        if error:
            self.fail(error)
            return
        token = sampled.token_id
        self.token_ids.append(token)
        self._note_logprobs(sampled)
        self._end_at_token(token)
        if self.finish_reason is None or self._params.include_stop_str_in_output:
            self._add_text(token)
        if self.finish_reason is None and len(self.token_ids) >= self._params.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self._flush()

    def finish(self, reason: FinishReason) -> None:
        """End from outside (abort, deadline); one that has ended stays as it is."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self._flush()

    def fail(self, error: str) -> None:
        """End with an error; what was generated before is kept. One that has ended stays as it is."""
        if self.finish_reason is None:
            self.error = error
            self.finish("error")

    @property
    def visible_text(self) -> str:
        """Text that no later token can take back."""
        if self.finish_reason is not None:
            return self._text
        return self._text[: len(self._text) - self._stops.num_held_back(self._text)]

    def output(self) -> CompletionOutput:
        """All of it so far."""
        return self._record(self.visible_text, 0)

    def news(self) -> CompletionOutput | None:
        """What is new since the last call, or None when nothing is; ``cumulative_logprob`` is of all of it."""
        text, has_ended = self.visible_text, self.finish_reason is not None
        if len(self.token_ids) == self._num_told_tokens and has_ended == self._told_end:
            return None
        record = self._record(text[self._num_told_characters :], self._num_told_tokens)
        self._num_told_tokens, self._num_told_characters, self._told_end = len(self.token_ids), len(text), has_ended
        return record

    def _record(self, text: str, first_token: int) -> CompletionOutput:
        wants = self._params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=tuple(self.token_ids[first_token:]),
            logprobs=tuple(self._logprobs[first_token:]) if wants else None,
            cumulative_logprob=self._cumulative if wants else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            error=self.error,
        )

    def _grammar_error(self, sampled: SampledToken) -> str:
        """Go on in the grammar; why that is not possible, or nothing."""
        grammar = self.grammar
        if grammar is None or (not grammar.error and (sampled.error or grammar.accept(sampled.token_id))):
            return ""
        reason = grammar.error or f"token {sampled.token_id} does not fit"
        return f"structured_outputs: after {len(self.token_ids)} tokens: {reason}"

    def _end_at_token(self, token: int) -> None:
        params = self._params
        if len(self.token_ids) < params.min_tokens:
            return
        if token == self._eos_token_id and not params.ignore_eos:
            self.finish_reason = "stop"
        elif token in params.stop_token_ids:
            self.finish_reason, self._stop_reason = "stop", token

    def _add_text(self, token: int) -> None:
        """Append what a token adds to the text, and end at a stop text."""
        new = self._stream.push(token) if self._stream is not None else ""
        self._text += new
        if self.finish_reason is not None or len(self.token_ids) < self._params.min_tokens:
            return
        found = self._stops.find(self._text, len(new))
        if found is not None:
            is_kept = self._params.include_stop_str_in_output
            self._text = self._text[: found.start + (len(found.stop) if is_kept else 0)]
            self.finish_reason, self._stop_reason = "stop", found.stop

    def _flush(self) -> None:
        """Text held back as half a character is replaced; nothing follows a stop text."""
        if self._stream is not None and not isinstance(self._stop_reason, str):
            self._text += self._stream.finish()

    def _note_logprobs(self, sampled: SampledToken) -> None:
        if self._params.logprobs is not None:
            self._cumulative += sampled.logprobs[sampled.token_id].logprob
            self._logprobs.append(with_text(sampled.logprobs, self._tokenizer))
