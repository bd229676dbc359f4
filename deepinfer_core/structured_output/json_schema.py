"""JSON schemas of requests as grammars of the compiler, with nothing in them that it would not enforce."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.structured_output.schema_handlers import HANDLERS
from deepinfer_core.structured_output.schema_walk import Relaxable, RewrittenSchema, Unenforced, Walker

MAX_TRIALS = 200
"""The most compilations that look for the keyword which the compiler turned down."""

WHITESPACE: Mapping[str, Mapping[str, Any]] = {
    "bounded": {"whitespace_pattern": r"(?:\x{a}[\x{20}\x{9}]{0,20}|[\x{20}\x{9}]{1,20})"},
    "none": {"whitespace_flexible": False},
    "any": {"whitespace_flexible": True},
}
"""Way of whitespace -> options of the compiler."""
_ESCAPES = 'nrtbf\\"'
r"""Without ``u``: ``"\u0061"`` would be a second spelling of the name ``"a"``, past what the schema says of it."""

Validate = Callable[[str], str]
"""Tries a JSON schema's text; returns what is wrong with it, or nothing."""


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema for the compiler.

    Attributes:
        text: JSON text, the compiler's options in it.
        unenforced: Keywords that outputs may violate.
        problems: Why it cannot be compiled; empty if it can.
    """

    text: str
    unenforced: Sequence[Unenforced]
    problems: Sequence[str]


def schema_grammar(document: Any, whitespace: str, validate: Validate) -> SchemaGrammar:
    """Rewrite a parsed JSON schema for the compiler, leaving out what is not enforced."""
    rewritten = Walker(document, HANDLERS).run()
    unenforced = list(rewritten.unenforced)
    problems = list(rewritten.malformed)
    text = _text(rewritten, whitespace)
    if not problems and (error := validate(text)):
        turned_down = _turned_down(rewritten, whitespace, validate)
        for relaxable, reason in turned_down:
            relaxable.relax()
            finding = Unenforced(relaxable.pointer, relaxable.keyword, reason)
            unenforced += [] if finding in unenforced else [finding]  # a branch written out twice is one keyword
        text = _text(rewritten, whitespace)
        if not turned_down or (error := validate(text)):
            problems.append(f"#: {error}")
    return SchemaGrammar(text, unenforced, problems)


def _text(rewritten: RewrittenSchema, whitespace: str) -> str:
    schema: Any = rewritten.schema
    if schema is True:
        schema = {}
    if schema is False:
        schema = {"allOf": [False]}
    options = {**WHITESPACE[whitespace], "json_allowed_escapes": _ESCAPES}
    return json.dumps({"x-guidance": options, **schema}, ensure_ascii=False)


def _turned_down(rewritten: RewrittenSchema, whitespace: str, validate: Validate) -> list[tuple[Relaxable, str]]:
    """Keywords that fail even when they are the only one that is not relaxed, each with the compiler's reason."""

    def error_with(kept: Relaxable | None) -> str:
        restore = [other.relax() for other in rewritten.relaxable if other is not kept]
        error = validate(_text(rewritten, whitespace))
        for undo in reversed(restore):
            undo()
        return error

    if error_with(None):
        return []  # it fails for another reason
    return [
        (kept, _REASONS.get(kept.keyword, error))
        for kept in rewritten.relaxable[:MAX_TRIALS]
        if (error := error_with(kept))
    ]


_REASONS = {
    "oneOf": "it cannot be shown that at most one branch matches; make a required property differ, or write anyOf",
    "patternProperties": "two patterns can match the same name, or it cannot be shown that they do not",
    "minProperties": "it is counted only where every listed property is required",
    "maxProperties": "it is counted only where every listed property is required",
}
