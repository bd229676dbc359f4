"""Conversations to prompts, in the format of the model's authors (spec model/10; the package ``deepseek-recipe``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.engine.tokenizer import Tokenizer
from deepinfer_core.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    import deepseek_recipe

Message = Mapping[str, Any]
"""A message as in OpenAI's chat API: ``role``, ``content`` and what else that role has."""

NO_REASONING = "none"
"""The effort that lets the model answer at once: the prompt closes the thought before it begins."""

_MODEL_NAME = "DeepSeek-V4.1-Flash"
_SPECIALS_IN_USE = (
    "Bos",
    "Eos",
    "ThinkingStart",
    "ThinkingEnd",
    "System",
    "User",
    "Assistant",
    "LatestReminder",
    "Dsml",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation and how the model should answer it.

    Attributes:
        messages: The conversation so far, oldest first.
        reasoning_effort: ``none`` for an answer without reasoning; else how thorough it should be: ``low``, ``high``,
            ``max`` (and the names that ``deepseek-recipe`` treats as one of these).
        tools: Function definitions as in OpenAI's API.
        tool_choice: ``auto``, ``none``, ``required`` (only without reasoning) or the choice of one function.
        continue_final_message: The last message is an assistant's and the model continues it, instead of beginning a
            turn of its own.
    """

    messages: Sequence[Message]
    reasoning_effort: str = NO_REASONING
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEncoder:
    """Renders conversations and encodes them with the tokenizer of one checkpoint.

    Text of messages is encoded without special tokens, so their spellings in it stay ordinary text.
    """

    encoding: deepseek_recipe.DeepseekV41Encoding

    def encode(self, request: ChatRequest) -> list[int]:
        """Token ids of the prompt that asks for the next assistant turn; the start token is in them.

        Raises:
            RequestError: The conversation or a setting is not valid, or a message holds an image.
        """
        return self.encoding.encode(self._conversation(request))

    def render(self, request: ChatRequest) -> str:
        """The prompt as text, to be read; :meth:`encode` alone keeps forged special tokens apart.

        Raises:
            RequestError: As :meth:`encode`.
        """
        return self.encoding.render_conversation(self._conversation(request)).prompt

    def _conversation(self, request: ChatRequest) -> deepseek_recipe.Conversation:
        conversation = _convert(_body(request))
        if self.encoding.render_conversation(conversation).image_sources:
            raise RequestError(
                "chat: a message holds an image, but the vision part of the model is not run; send text only"
            )
        return conversation


def load_chat_encoder(tokenizer: Tokenizer) -> ChatEncoder:
    """The encoder for a tokenizer.

    Raises:
        CheckpointError: The tokenizer lacks markers of the chat format; names every one.
    """
    import deepseek_recipe

    kinds = [getattr(deepseek_recipe.SpecialToken, name) for name in _SPECIALS_IN_USE]
    missing = [kind.default_str() for kind in kinds if tokenizer.backing.token_to_id(kind.default_str()) is None]
    if missing:
        raise CheckpointError(
            f"{tokenizer.path.name} lacks {', '.join(missing)}, which the chat format needs; send raw prompts instead",
            str(tokenizer.path.parent),
        )
    recipe_tokenizer = deepseek_recipe.Tokenizer.from_file(str(tokenizer.path))
    return ChatEncoder(encoding=deepseek_recipe.DeepseekV41Encoding().with_tokenizer(recipe_tokenizer))


def _body(request: ChatRequest) -> dict[str, Any]:
    """The request in the form of OpenAI's API with the authors' extensions."""
    if not request.tools and request.tool_choice not in ("auto", "none"):
        raise RequestError(
            f"chat: tool_choice is {request.tool_choice!r} but there are no tools; give the tools to choose from"
        )
    body: dict[str, Any] = {"model": _MODEL_NAME, "messages": _checked_messages(request)}
    if request.tools:
        body["tools"] = list(request.tools)
    if request.tool_choice != "auto":
        body["tool_choice"] = request.tool_choice
    if request.reasoning_effort == NO_REASONING:
        return body | {"thinking": {"type": "disabled"}}
    return body | {"thinking": {"type": "enabled"}, "reasoning_effort": request.reasoning_effort}


def _checked_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Copies of the messages; what ``deepseek-recipe`` would drop in silence is refused."""
    given: Any = request.messages
    if isinstance(given, str | Mapping) or not all(isinstance(message, Mapping) for message in given):
        raise RequestError("chat: messages must be a list of dictionaries such as {'role': 'user', 'content': 'Hello'}")
    messages = [dict(message) for message in given]
    for at, message in enumerate(messages):
        if message.get("tools"):
            raise RequestError(f"chat: message {at} carries tools; pass the tools of a conversation with the request")
        if message.get("prefix"):
            raise RequestError(f"chat: message {at} is marked as a prefix; set continue_final_message instead")
    if request.continue_final_message:
        if not messages or messages[-1].get("role") != "assistant":
            raise RequestError("chat: continue_final_message needs an assistant message at the end of the conversation")
        messages[-1]["prefix"] = True
    return messages


def _convert(body: dict[str, Any]) -> deepseek_recipe.Conversation:
    import deepseek_recipe

    try:
        return deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions()).conversation
    except deepseek_recipe.ConversionError as error:
        raise RequestError(f"chat: {json.loads(error.body)['error']['message']}") from error
    except (ValueError, TypeError) as error:
        raise RequestError(f"chat: {error}") from error
