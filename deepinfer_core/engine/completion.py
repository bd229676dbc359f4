"""One completion as it grows: tokens, text, and the rules that end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.engine.stop_text import StopText
from deepinfer_core.engine.text_stream import TextStream
from deepinfer_core.outputs import CompletionOutput, FinishReason, Logprob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.runtime.sampler import SampledToken, TokenLogprob
    from deepinfer_core.sampling_params import SamplingParams


class Completion:
    """Applies the end token, stop tokens, stop texts and ``max_tokens``, in this order.

    The token that ends a completion is among its ids; neither the end token's spelling nor a stop text is in its text.
    """

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None, eos_token_id: int) -> None:
        """Begin empty; without a tokenizer there is no text."""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self._index, self._params, self._tokenizer = index, params, tokenizer
        self._eos_token_id = eos_token_id
        self._stream = TextStream(tokenizer) if tokenizer is not None else None
        self._stops = StopText(params.stop)
        self._text = ""
        self._stop_reason: str | int | None = None
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative = 0.0

    def push(self, sampled: SampledToken) -> None:
        """Take the next sampled token; sets ``finish_reason`` when it is the last."""
        if sampled.error:
            self.fail(sampled.error)
            return
        self.token_ids.append(sampled.token_id)
        self._report(sampled)
        new = self._stream.push(sampled.token_id) if self._stream is not None else ""
        self._text += new
        self._end(sampled.token_id, len(new))
        if self.finish_reason is not None:
            self._flush()

    def finish(self, reason: FinishReason) -> None:
        """End from outside (abort, deadline)."""
        self.finish_reason = reason
        self._flush()

    def fail(self, error: str) -> None:
        """End with an error; what was generated before is kept."""
        self.error = error
        self.finish("error")

    @property
    def visible_text(self) -> str:
        """Text that no later token can take back."""
        if self.finish_reason is not None:
            return self._text
        return self._text[: len(self._text) - self._stops.num_held_back(self._text)]

    def output(self) -> CompletionOutput:
        """The completion so far."""
        wants = self._params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=self.visible_text,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self._logprobs) if wants else None,
            cumulative_logprob=self._cumulative if wants else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            error=self.error,
        )

    def _end(self, token: int, num_new: int) -> None:
        params = self._params
        if len(self.token_ids) >= params.min_tokens:
            if token == self._eos_token_id and not params.ignore_eos:
                self.finish_reason = "stop"
                return
            if token in params.stop_token_ids:
                self.finish_reason, self._stop_reason = "stop", token
                return
            found = self._stops.find(self._text, num_new)
            if found is not None:
                self._text = self._text[: found.start]
                self.finish_reason, self._stop_reason = "stop", found.stop
                return
        if len(self.token_ids) >= params.max_tokens:
            self.finish_reason = "length"

    def _flush(self) -> None:
        """Text held back as half a character is replaced; nothing follows a stop text."""
        if self._stream is not None and not isinstance(self._stop_reason, str):
            self._text += self._stream.finish()

    def _report(self, sampled: SampledToken) -> None:
        if self._params.logprobs is None:
            return
        self._cumulative += sampled.logprobs[sampled.token_id].logprob
        self._logprobs.append(self._named(sampled.logprobs))

    def _named(self, logprobs: Mapping[int, TokenLogprob]) -> dict[int, Logprob]:
        decode = self._tokenizer.decode if self._tokenizer is not None else None
        return {
            token: Logprob(value.logprob, value.rank, decode([token], skip_special_tokens=False) if decode else "")
            for token, value in logprobs.items()
        }
