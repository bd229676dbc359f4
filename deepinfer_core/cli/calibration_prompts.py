"""Prompts to calibrate with: one on each line of a file, with whatever else a data set has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepinfer_core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.prompts import PromptEncoder

_SOURCE = "--prompts"
_KINDS = ("prompt", "prompt_token_ids", "messages")
_PROBLEMS = 10
"""Lines that an error names at most: a file of another kind is wrong in every line."""

NumberedPrompt = tuple[int, Mapping[str, Any]]
"""The number of a line, from 1, blank lines counted, and its object."""


def read_prompt_lines(file: Path, limit: int | None = None) -> list[NumberedPrompt]:
    """Read a file with an object of JSON on each line; blank lines are left out.

    An object has one of ``prompt`` (a text), ``prompt_token_ids`` or ``messages``. Its other fields, such as expected
    answers, are ignored: all prompts of a calibration are sampled in the same way.

    Args:
        file: UTF-8.
        limit: Prompts to read at most, from the beginning; None for all.

    Raises:
        ConfigError: The file cannot be read or has no prompts, or lines are wrong.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", _SOURCE) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error.reason} at byte {error.start}", _SOURCE) from error
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()][:limit]
    if not numbered:
        raise ConfigError(
            f'{file} has no prompts; write an object on each line, such as {{"prompt": "What is 17 + 25?"}}', _SOURCE
        )
    parsed = [(number, *_parse(line)) for number, line in numbered]
    raise_wrong_lines([f"line {number}: {problem}" for number, _, problem in parsed if problem], file)
    return [(number, fields) for number, fields, _ in parsed]


def encode_prompt_lines(lines: Sequence[NumberedPrompt], encoder: PromptEncoder, *, is_raw: bool) -> list[list[int]]:
    """Token ids of every prompt.

    Args:
        lines: From :func:`read_prompt_lines`.
        encoder: Of the model.
        is_raw: A ``prompt`` is the exact text, special tokens recognised; otherwise it is a user's message.

    Raises:
        ConfigError: The model's tokenizer or chat format takes some of them not.
    """
    encoded: list[list[int]] = []
    problems: list[str] = []
    for number, fields in lines:
        try:
            encoded.append(_encode(fields, encoder, is_raw))
        except RequestError as error:
            problems.append(f"line {number}: {error}")
    raise_wrong_lines(problems)
    return encoded


def raise_wrong_lines(problems: Sequence[str], file: Path | None = None) -> None:
    """Raise if there are problems; the first of them are listed.

    Raises:
        ConfigError: There are some.
    """
    if not problems:
        return
    hidden = len(problems) - _PROBLEMS
    shown = [*problems[:_PROBLEMS], *([f"{hidden} more lines are wrong"] if hidden > 0 else [])]
    raise ConfigError(shown, source=_SOURCE if file is None else f"{_SOURCE} {file}")


def _parse(line: str) -> tuple[Mapping[str, Any], str]:
    """The object of a line, or what is wrong with it."""
    try:
        parsed: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"it is not JSON ({error})"
    fields = cast(Mapping[str, Any], parsed) if isinstance(parsed, dict) else {}
    kinds = [name for name in _KINDS if name in fields]
    if len(kinds) != 1:
        return {}, f"it has {' and '.join(kinds) or 'no prompt'}; give an object with one of {', '.join(_KINDS)}"
    if kinds == ["prompt"] and not isinstance(fields["prompt"], str):
        return {}, "prompt must be a text"
    return fields, ""


def _encode(fields: Mapping[str, Any], encoder: PromptEncoder, is_raw: bool) -> list[int]:
    if "messages" in fields:
        return list(encoder.encode_chat(fields["messages"], {}).token_ids)
    if "prompt_token_ids" in fields or is_raw:
        return list(encoder.encode_prompt(fields).token_ids)
    return list(encoder.encode_chat([{"role": "user", "content": fields["prompt"]}], {}).token_ids)
