"""Prompts as callers give them, as token ids."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deepinfer_core.engine.chat import ChatRequest, load_chat_encoder
from deepinfer_core.engine.request_checks import plain_token_ids
from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.chat import ChatEncoder, Message
    from deepinfer_core.engine.tokenizer import Tokenizer

Prompt = str | Mapping[str, Any]
"""A text, or ``{"prompt": text}``, or ``{"prompt_token_ids": [...]}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """A prompt that the engine takes.

    Attributes:
        token_ids: Its tokens; the engine checks them.
        text: What they were made of, for the record.
    """

    token_ids: Sequence[int]
    text: str | None = None


class PromptEncoder:
    """Turns texts and conversations into tokens, and tokens into text."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """Take a model's tokenizer; without one, only prompts of token ids are possible."""
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: The model was made from a config alone.
        """
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer (load_format dummy); give prompts as prompt_token_ids")
        return self._tokenizer

    def encode(self, text: str, *, recognize_special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text.
            recognize_special: Spellings of special tokens become those tokens; otherwise they are ordinary text.

        Raises:
            RequestError: It is no text, is not well-formed, or there is no tokenizer.
        """
        given: Any = text
        if not isinstance(given, str):
            raise RequestError(f"encode: {reprlib.repr(given)} is no text; give a str")
        return self.tokenizer.encode(given, recognize_special=recognize_special)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids.

        Args:
            token_ids: Any sequence of them, such as ``CompletionOutput.token_ids``.
            skip_special_tokens: Leave special tokens out of the text.

        Raises:
            RequestError: They are no token ids of this model, or there is no tokenizer.
        """
        ids = plain_token_ids(token_ids, self.tokenizer.vocab_size) if len(token_ids) else ()
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def encode_prompt(self, prompt: Prompt) -> EncodedPrompt:
        """A text as it is, special tokens recognised, or token ids.

        Raises:
            RequestError: It is nothing of the kind, or there is no tokenizer for a text.
        """
        fields: Any = {"prompt": prompt} if isinstance(prompt, str) else prompt
        text = fields.get("prompt") if isinstance(fields, Mapping) else None
        if isinstance(fields, Mapping) and "prompt_token_ids" in fields:
            return EncodedPrompt(token_ids=fields["prompt_token_ids"], text=text)
        if not isinstance(text, str):
            raise RequestError(f"the prompt is {reprlib.repr(prompt)}; give a text, or {{'prompt_token_ids': [...]}}")
        return EncodedPrompt(token_ids=self.tokenizer.encode(text), text=text)

    def encode_chat(self, messages: Sequence[Message], options: Mapping[str, Any]) -> EncodedPrompt:
        """The prompt that asks for the next turn of a conversation.

        Args:
            messages: OpenAI-style messages.
            options: Fields of :class:`~deepinfer_core.engine.chat.ChatRequest` but the messages.

        Raises:
            RequestError: The conversation or an option is not valid, or there is no tokenizer.
        """
        return EncodedPrompt(token_ids=self._chat_encoder.encode(ChatRequest(messages=messages, **options)))

    @cached_property
    def _chat_encoder(self) -> ChatEncoder:
        return load_chat_encoder(self.tokenizer)
