"""A file of prompts, one on each line, as text or as JSON. A line that is wrong is wrong alone."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.engine.chat import NO_REASONING, ChatRequest
from deepinfer_core.errors import ConfigError, RequestError, nearest
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.engine.chat import Message
    from deepinfer_core.engine.prompts import Prompt

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
"""How a line of JSON gives its prompt; exactly one of them."""
CHAT_FIELDS = tuple(f.name for f in fields(ChatRequest) if f.name != "messages")
SAMPLING_FIELDS = tuple(name for name in inspect.signature(SamplingParams).parameters if name != "output_kind")
"""All but what the records of a running request hold: a line has one result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for every line that does not say otherwise.

    Attributes:
        sampling: Fields of :class:`SamplingParams`; to ``seed`` the number of the line is added.
        reasoning_effort: For conversations.
        is_raw: A text is the exact prompt, special tokens recognised; otherwise it is a user's message.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reasoning_effort: str = NO_REASONING
    is_raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """One line: a conversation, or a prompt as the model takes it, or what is wrong with it.

    Attributes:
        number: Its place in the file, from 1, blank lines counted.
        id: The caller's name for it; its number where the line gives none.
        prompt: Exact text or token ids; None for a conversation.
        messages: The conversation.
        chat_options: Fields of :class:`ChatRequest` for it.
        params: How to sample.
        error: Why it cannot be served, as far as the line alone tells; "" when it can.
    """

    number: int
    id: str | int
    prompt: Prompt | None = None
    messages: Sequence[Message] = ()
    chat_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    params: SamplingParams = field(default_factory=SamplingParams)
    error: str = ""


def read_prompts(file: Path, defaults: Defaults) -> tuple[PromptLine, ...]:
    """Read all lines; blank ones are left out.

    Args:
        file: JSON on each line if its name ends in ``.jsonl``, else a text on each line; UTF-8.
        defaults: For what a line leaves open.

    Raises:
        ConfigError: The file cannot be read, or has no prompts.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", source="--file") from error
    parse = _parse_json if file.suffix == ".jsonl" else _parse_text
    numbered = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    lines = tuple(_read_line(number, line, parse, defaults) for number, line in numbered if line.strip())
    if not lines:
        raise ConfigError(f"{file} has no prompts; write one on each line", source="--file")
    return lines


def _read_line(number: int, line: bytes, parse: Callable[[str], Mapping[str, Any]], defaults: Defaults) -> PromptLine:
    """One line, right or wrong; a wrong one keeps its id if that much can be read."""
    given: Mapping[str, Any] = {}
    try:
        given = parse(line.removesuffix(b"\r").decode())
        return _prompt_line(number, given, defaults)
    except UnicodeDecodeError as error:
        problem = f"it is not UTF-8 ({error.reason} at byte {error.start})"
    except RequestError as error:
        problem = str(error)
    name: Any = given.get("id", number)
    return PromptLine(number=number, id=name if _is_id(name) else number, error=problem)


def _parse_text(line: str) -> Mapping[str, Any]:
    return {"prompt": line}


def _parse_json(line: str) -> Mapping[str, Any]:
    try:
        parsed: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"it is not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number with too many digits
        raise RequestError(f"it is JSON that cannot be read ({error})") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"it is JSON but no object; give an object with {_listed(PROMPT_FIELDS)}")
    return parsed


def _prompt_line(number: int, given: Mapping[str, Any], defaults: Defaults) -> PromptLine:
    problems = [*_wrong_fields(given), *_wrong_prompt(given, defaults)]
    params = SamplingParams()
    try:
        params = SamplingParams(**_sampling(number, given, defaults))
    except RequestError as error:
        problems.append(str(error))
    if problems:
        raise RequestError("; ".join(problems))
    options = {"reasoning_effort": defaults.reasoning_effort} | {n: given[n] for n in CHAT_FIELDS if n in given}
    prompt, messages = _prompt(given, defaults)
    return PromptLine(
        number=number,
        id=given.get("id", number),
        prompt=prompt,
        messages=messages,
        chat_options=options,
        params=params,
    )


def _prompt(given: Mapping[str, Any], defaults: Defaults) -> tuple[Prompt | None, Sequence[Message]]:
    """The prompt as the model takes it, or the conversation that asks for one."""
    if "prompt_token_ids" in given:
        return {"prompt_token_ids": given["prompt_token_ids"]}, ()
    if "messages" in given:
        return None, given["messages"]
    if defaults.is_raw:
        return given["prompt"], ()
    return None, [{"role": "user", "content": given["prompt"]}]


def _wrong_fields(given: Mapping[str, Any]) -> list[str]:
    """Fields that are not known, and fields of the wrong type."""
    known = (*PROMPT_FIELDS, *CHAT_FIELDS, *SAMPLING_FIELDS, "id")
    unknown = [f"{name!r} is not a field of a line{nearest(name, known)}" for name in given if name not in known]
    wrong = [f"{n} must be {words}" for n, (allows, words) in _TYPES.items() if n in given and not allows(given[n])]
    return unknown + wrong


def _wrong_prompt(given: Mapping[str, Any], defaults: Defaults) -> list[str]:
    """Not exactly one prompt, or options of a conversation where there is none."""
    kinds = [name for name in PROMPT_FIELDS if name in given]
    if len(kinds) != 1:
        return [f"it has {' and '.join(kinds) or 'no prompt'}; give one of {_listed(PROMPT_FIELDS)}"]
    options = [name for name in CHAT_FIELDS if name in given]
    is_exact = kinds == ["prompt_token_ids"] or (kinds == ["prompt"] and defaults.is_raw)
    return [f"{' and '.join(options)} cannot change an exact prompt; give messages"] if options and is_exact else []


def _sampling(number: int, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Fields of the sampling parameters: the line's own, else the defaults."""
    fallback = dict(defaults.sampling)
    if fallback.get("seed") is not None:
        fallback["seed"] += number
    if "seq_seed" in given:  # the other name of seed
        fallback.pop("seed", None)
    chosen = fallback | {name: given[name] for name in SAMPLING_FIELDS if name in given}
    bias: Any = chosen.get("logit_bias")
    if isinstance(bias, Mapping):  # the keys of a JSON object are texts
        chosen["logit_bias"] = {int(t) if isinstance(t, str) and t.isdecimal() else t: bias[t] for t in bias}
    return chosen


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id": (_is_id, "a text or a whole number"),
    "prompt": (lambda value: isinstance(value, str), "a text"),
    "messages": (lambda value: _is_objects(value) and bool(value), "a list of objects, at least one"),
    "reasoning_effort": (lambda value: isinstance(value, str), "a text"),
    "tools": (_is_objects, "a list of objects"),
    "tool_choice": (lambda value: isinstance(value, str | Mapping), "a text or an object"),
    "continue_final_message": (lambda value: isinstance(value, bool), "true or false"),
}
"""Field -> what it may be, and that in words. Token ids and sampling fields are checked where they are used."""
