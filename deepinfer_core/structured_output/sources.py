"""What a request asks for, as a grammar in the compiler's language; every mistake of the request is found here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llguidance

from deepinfer_core.errors import RequestError, describe
from deepinfer_core.structured_output.gbnf import GrammarTextError, gbnf_to_lark, is_gbnf
from deepinfer_core.structured_output.json_schema import SchemaGrammar, schema_grammar
from deepinfer_core.structured_output.pattern import PatternError, literal, whole_match
from deepinfer_core.structured_output.schema_walk import Unenforced
from deepinfer_core.structured_output.structural_tag import read_structural_tags, tags_grammar
from deepinfer_core.structured_outputs_params import StructuredOutputsParams

_ERROR_CHARACTERS = 400
_LARK_SKIPPED = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/|#[^\n]*')
_LARK_TOKEN = re.compile(r"%json\b|\btemperature\s*=")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar in the compiler's language.

    Attributes:
        text: What the compiler reads.
        warnings: What it does not enforce, one sentence for each keyword.
    """

    text: str
    warnings: tuple[str, ...] = ()


Validate = Callable[[str], tuple[bool, list[str]]]
"""Tries a grammar: whether it is wrong, and messages."""


def grammar_source(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    """The grammar of a request.

    Raises:
        RequestError: It is malformed, cannot be compiled, or holds keywords that are not enforced and may not be left
            out; lists them all, each with its place.
    """
    source = _BUILDERS[params.kind](params, validate)
    is_wrong, messages = validate(source.text)
    if is_wrong:
        raise _error(params, [shortened(message) for message in messages])
    return replace(source, warnings=(*source.warnings, *(shortened(message) for message in messages)))


def shortened(message: str) -> str:
    """The compiler's message without the dump of its state, cut to a length that fits a line or two."""
    text = message.partition("\n<")[0].strip()
    return text if len(text) <= _ERROR_CHARACTERS else f"{text[:_ERROR_CHARACTERS]}..."


def _error(params: StructuredOutputsParams, problems: Sequence[str]) -> RequestError:
    return RequestError(describe(f"structured_outputs.{params.kind}", problems))


def _json(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    found = _schema(json.loads(params.source), params, validate)
    return _honest(params, found.problems, found.unenforced, _from_schema(found.text))


def _json_object(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    return GrammarSource(_from_schema(_schema({"type": "object"}, params, validate).text))


def _regex(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    try:
        return GrammarSource(llguidance.LLMatcher.grammar_from_regex(whole_match(params.source)))
    except PatternError as error:
        raise _error(params, [str(error)]) from error


def _choice(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    texts = "|".join(literal(text) for text in params.choice or ())
    return GrammarSource(llguidance.LLMatcher.grammar_from_regex(f"(?:{texts})"))


def _grammar(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    try:
        if is_gbnf(params.source):
            return GrammarSource(llguidance.LLMatcher.grammar_from_lark(gbnf_to_lark(params.source)))
        return _lark(params, validate)
    except GrammarTextError as error:
        raise _error(params, [str(error)]) from error


def _lark(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    """A Lark grammar; JSON schemas within are rewritten like any other."""
    text, parts, problems, unenforced, done = params.source, list[str](), list[str](), list[Unenforced](), 0
    for match in _lark_tokens(text):
        where = f"line {text.count(chr(10), 0, match.start()) + 1}"
        if match.start() < done:
            continue
        if not match.group().startswith("%"):
            problems.append(f"{where}: temperature is set by the request, not by a rule of its grammar")
            continue
        try:
            document, end = json.JSONDecoder().raw_decode(text, _skip_blanks(text, match.end()))
        except ValueError as error:
            raise GrammarTextError(f"{where}: %json without a JSON schema behind it: {error}") from error
        found = _schema(document, params, validate)
        problems += [f"{where}: {problem}" for problem in found.problems]
        unenforced += [replace(item, pointer=f"{where}, {item.pointer}") for item in found.unenforced]
        parts += [text[done : match.end()], " ", found.text]
        done = end
    lark = "".join([*parts, text[done:]])
    return _honest(params, problems, unenforced, llguidance.LLMatcher.grammar_from_lark(lark))


def _lark_tokens(text: str) -> Iterator[re.Match[str]]:
    """Places outside texts, patterns and comments that need a look."""
    at = 0
    while at < len(text):
        skipped = _LARK_SKIPPED.match(text, at)
        if skipped is not None:
            at = skipped.end()
            continue
        found = _LARK_TOKEN.match(text, at)
        if found is not None:
            yield found
        at += 1


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _structural_tag(params: StructuredOutputsParams, validate: Validate) -> GrammarSource:
    found, problems = read_structural_tags(json.loads(params.source))
    grammars = [_schema(tag.schema, params, validate) for tag in found.tags]
    unenforced: list[Unenforced] = []
    for tag, grammar in zip(found.tags, grammars, strict=True):
        problems += [f"{tag.pointer}{problem[1:]}" for problem in grammar.problems]
        unenforced += [replace(item, pointer=f"{tag.pointer}{item.pointer[1:]}") for item in grammar.unenforced]
    lark = "" if problems else tags_grammar(found, [grammar.text for grammar in grammars])
    return _honest(params, problems, unenforced, llguidance.LLMatcher.grammar_from_lark(lark))


def _schema(document: Any, params: StructuredOutputsParams, validate: Validate) -> SchemaGrammar:
    def wrong(text: str) -> str:
        is_wrong, messages = validate(_from_schema(text))
        return shortened("; ".join(messages)) if is_wrong else ""

    return schema_grammar(document, params.whitespace, wrong)


def _from_schema(text: str) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(text)


def _honest(
    params: StructuredOutputsParams, problems: Sequence[str], unenforced: Sequence[Unenforced], text: str
) -> GrammarSource:
    """Refuse what is not enforced, or warn of it, as the request wishes."""
    listed = [str(item) for item in unenforced]
    if problems or (listed and params.unenforced == "refuse"):
        hint = "; unenforced='warn' leaves it out and says so in the output"
        raise _error(params, [*problems, *(f"{item}{hint}" for item in listed)])
    return GrammarSource(text, tuple(listed))


_BUILDERS: dict[str, Callable[[StructuredOutputsParams, Validate], GrammarSource]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
