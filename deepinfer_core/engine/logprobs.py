"""Log-probabilities as users see them: with the text of each token, and in vLLM's shape for prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deepinfer_core.errors import require
from deepinfer_core.outputs import Logprob

if TYPE_CHECKING:
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.outputs import PromptLogprobs
    from deepinfer_core.runtime.sampled_rows import TokenLogprob


def with_text(values: Mapping[int, TokenLogprob], tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """The same values with the text of each token, special ones spelt out; without a tokenizer there is none."""
    return {
        token: Logprob(value.logprob, value.rank, tokenizer.token_text(token) if tokenizer else None)
        for token, value in values.items()
    }


class PromptScores:
    """Collects the log-probabilities of one prompt, position by position, each of them once.

    A prompt may be computed in chunks, and again from its beginning after a preemption: positions that are known
    already are not asked for again.

    Attributes:
        num_alternatives: Best tokens to report with each.
        is_finite: False when the model's logits for some token of the prompt defined no distribution.
    """

    def __init__(self, prompt_token_ids: Sequence[int], num_alternatives: int, tokenizer: Tokenizer | None) -> None:
        """Begin with the first token, which nothing predicts; without a tokenizer there are no texts."""
        self.num_alternatives = num_alternatives
        self._prompt = prompt_token_ids
        self._tokenizer = tokenizer
        self.is_finite = True
        self._values: list[Mapping[int, Logprob] | None] = [None]
        self._num_asked = 1

    def rows_to_score(self, start: int, num_tokens: int, *, continues: bool = False) -> range:
        """Of the rows that a step computes, those whose next token is in the prompt and not scored yet.

        Args:
            start: Position of the first row.
            num_tokens: Rows of the step.
            continues: The step before it is in flight: its scores are still to come.

        Returns:
            Positions; the row at position ``p`` predicts the prompt's token at ``p + 1``.
        """
        num_known, length = self._num_asked if continues else len(self._values), len(self._prompt)
        require(start < num_known or num_known == length, f"prompt tokens from {num_known} on were not scored")
        rows = range(max(start, num_known - 1), max(min(start + num_tokens, length - 1), num_known - 1))
        self._num_asked = rows.stop + 1
        return rows

    def targets(self, rows: range) -> Sequence[int]:
        """The tokens that these rows are to predict."""
        return self._prompt[rows.start + 1 : rows.stop + 1]

    def add(self, values: Sequence[Mapping[int, TokenLogprob]]) -> None:
        """Take the scores of the next rows, in order; an empty one stands for logits that are not finite."""
        self.is_finite = self.is_finite and all(values)
        self._values += [with_text(row, self._tokenizer) for row in values]

    def complete(self) -> PromptLogprobs | None:
        """All scores, or None while some are missing."""
        return tuple(self._values) if len(self._values) == len(self._prompt) else None
