"""Grammars in GBNF or EBNF (``root ::= ...``), rewritten in the Lark syntax of the grammar compiler.

The compiler's own converter turns rules without references into lexemes. A lexeme takes all that it can, so
``word ::= [a-z]+`` in front of ``"x"`` never ends; here every set stays one character and the grammar means what it
says. A grammar without recursion is one pattern, which is matched a hundred times faster than character by character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from deepinfer_core.structured_output.pattern import MAX_DEPTH, PatternError, literal, whole_match

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<define>::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[()|.])""",
    re.VERBOSE,
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_HEXADECIMAL = {"x": 2, "u": 4, "U": 8}


MAX_PATTERN = 50_000
"""The longest pattern that a grammar without recursion becomes."""


class GrammarTextError(ValueError):
    """A grammar is malformed; the text says where and why."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def is_gbnf(text: str) -> bool:
    """True if rules are written with ``::=`` and none is Lark's ``start:``; otherwise the grammar is taken as Lark."""
    is_lark = re.search(r"^\s*(%llguidance\b|\??start\s*:(?!:))", text, re.MULTILINE)
    return is_lark is None and re.search(r"[A-Za-z_][A-Za-z0-9_-]*\s*::=", text) is not None


def gbnf_to_lark(text: str) -> str:
    """The same grammar in Lark syntax, ``start`` for ``root``.

    Raises:
        GrammarTextError: It is malformed, a rule is missing, or it is defined twice.
    """
    tokens = _tokens(text)
    heads = [at for at, token in enumerate(tokens[:-1]) if token.kind == "name" and tokens[at + 1].kind == "define"]
    if not heads or heads[0] != 0:
        _fail(text, tokens[0].at if tokens else 0, "a grammar begins with a rule, name ::= ...")
    names = _names(text, [tokens[at] for at in heads])
    bodies = {tokens[at].text: tokens[at + 2 : end] for at, end in zip(heads, [*heads[1:], len(tokens)], strict=True)}
    rules = [f"{names[name]}: {_body(text, body, names)}" for name, body in bodies.items()]
    pattern = _pattern(text, "root", bodies, ())
    return "%llguidance {}\n" + (f"start: /{pattern}/\n" if pattern else "\n".join(rules) + "\n")


def _pattern(text: str, name: str, bodies: Mapping[str, Sequence[_Token]], within: tuple[str, ...]) -> str:
    """The pattern of a rule without recursion; nothing where there is none, or only a long one."""
    if name in within or len(within) > MAX_DEPTH:
        return ""
    parts: list[str] = []
    length = 0
    for token in bodies[name]:
        part = token.text
        if token.kind == "name":
            part = _pattern(text, token.text, bodies, (*within, name))
        elif token.kind in ("text", "set") or part == ".":
            part = "(?:)" if token.text == '""' else _symbol(text, token, {}).strip("/")
        length += len(part)
        if not part or length > MAX_PATTERN:
            return ""
        is_mark = token.kind in ("mark", "repeat") and part == token.text
        parts.append(part.replace("(", "(?:").replace(" ", "") if is_mark else f"(?:{part})")
    return "".join(parts)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            _fail(text, at, f"{text[at : at + 10]!r} is not understood")
        kind = str(match.lastgroup)
        if kind != "space":
            found.append(_Token(kind, match.group(), at))
        at = match.end()
    return found


def _names(text: str, heads: list[_Token]) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, head in enumerate(heads):
        if head.text in names:
            _fail(text, head.at, f"rule {head.text!r} is defined twice")
        names[head.text] = "start" if head.text == "root" else f"r{number}"
    if "root" not in names:
        _fail(text, heads[0].at, "no rule is called root, where a grammar begins")
    return names


def _body(text: str, tokens: list[_Token], names: dict[str, str]) -> str:
    """Alternatives of a rule; one without symbols is the empty text."""
    parts: list[str] = []
    opened: list[_Token] = []
    previous = "|"
    for token in tokens:
        if token.text in ("|", ")") and token.kind == "mark" and previous in ("|", "("):
            parts.append('""')
        if token.kind == "repeat" and previous in ("|", "("):
            _fail(text, token.at, f"{token.text!r} has nothing to repeat")
        if token.kind == "mark":
            _nest(text, token, opened)
        parts.append(_symbol(text, token, names))
        previous = token.text if token.kind == "mark" else token.kind
    if opened:
        _fail(text, opened[-1].at, "an unmatched '('")
    return " ".join([*parts, '""'] if previous == "|" else parts)


def _nest(text: str, token: _Token, opened: list[_Token]) -> None:
    if token.text == "(":
        opened.append(token)
    elif token.text == ")":
        if not opened:
            _fail(text, token.at, "an unmatched ')'")
        opened.pop()


def _symbol(text: str, token: _Token, names: dict[str, str]) -> str:
    if token.kind == "name":
        if token.text not in names:
            _fail(text, token.at, f"there is no rule {token.text!r}")
        return names[token.text]
    if token.kind == "text":
        characters = _unescaped(text, token)
        return f"/{literal(characters)}/" if characters else '""'
    if token.kind == "set":
        return _set(text, token)
    if token.kind == "define":
        _fail(text, token.at, "'::=' without a name in front")
    if token.text == ".":
        return "/(?s:.)/"
    return token.text.replace(" ", "")


def _set(text: str, token: _Token) -> str:
    r"""A set; ``\U0001F600`` is written as the character first."""
    plain = re.sub(r"\\U([0-9A-Fa-f]{8})", lambda m: re.escape(_character(text, token, m[1])), token.text)
    try:
        return f"/{whole_match(plain)}/"
    except PatternError as error:
        _fail(text, token.at + error.position, error.reason)


def _unescaped(text: str, token: _Token) -> str:
    def replace(match: re.Match[str]) -> str:
        letter = match[1][0]
        if letter in _HEXADECIMAL:
            return _character(text, token, match[1][1:])
        if letter.isalnum() and letter not in _ESCAPED:
            _fail(text, token.at + match.start() + 1, f"\\{letter} is no escape")
        return _ESCAPED.get(letter, letter)

    return re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", replace, token.text[1:-1])


def _character(text: str, token: _Token, digits: str) -> str:
    code = int(digits, 16) if digits else -1
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        _fail(text, token.at, f"{token.text} holds an escape that is no character")
    return chr(code)


def _fail(text: str, at: int, reason: str) -> NoReturn:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    raise GrammarTextError(f"line {line}, column {column}: {reason}")
