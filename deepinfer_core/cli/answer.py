"""Write an answer to stdout as it grows, with what the model thinks before it set apart."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.cli.terminal import dim
from deepinfer_core.errors import NumericError

if TYPE_CHECKING:
    from deepinfer_core.outputs import RequestOutput

THOUGHT_BEGINS, THOUGHT_ENDS = "<think>", "</think>"
"""The chat format's marks: a prompt that asks for reasoning ends with the first, the model writes the second."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """One turn of a model, as far as it was written.

    Attributes:
        begins_with_thought: The prompt opened a thought.
        is_styled: stdout shows styles: a thought is dimmed. Otherwise it stands between its marks.
        text: The visible answer.
        thought: What came before it.
        num_tokens: Tokens of both.
        finish_reason: Why it ended; None while it runs, or when it was interrupted.
    """

    begins_with_thought: bool = False
    is_styled: bool = False
    text: str = ""
    thought: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None

    def follow(self, outputs: Iterable[RequestOutput]) -> None:
        """Write text as it comes, until the request ends or Ctrl-C raises ``KeyboardInterrupt`` through here.

        Raises:
            NumericError: The request failed while it ran.
        """
        if self.begins_with_thought and not self.is_styled:
            _write(THOUGHT_BEGINS + "\n")
        is_thinking = self.begins_with_thought
        try:
            for output in outputs:
                completion = output.outputs[0]
                is_thinking = self._show(completion.text, is_thinking=is_thinking)
                self.num_tokens, self.finish_reason = len(completion.token_ids), completion.finish_reason
                if completion.error:
                    raise NumericError(f"generation stopped after {self.num_tokens} tokens: {completion.error}")
        finally:
            if is_thinking:
                self._end_thought()

    def _show(self, text: str, *, is_thinking: bool) -> bool:
        """Write what is new in the whole text so far; returns whether the thought goes on."""
        thought, mark, answer = text.partition(THOUGHT_ENDS) if self.begins_with_thought else ("", "", text)
        new = thought[len(self.thought) :]
        _write(dim(new) if self.is_styled else new)
        if mark and is_thinking:
            self._end_thought()
        _write(answer[len(self.text) :])
        self.thought, self.text = thought, answer
        return is_thinking and not mark

    def _end_thought(self) -> None:
        _write("\n\n" if self.is_styled else f"\n{THOUGHT_ENDS}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
