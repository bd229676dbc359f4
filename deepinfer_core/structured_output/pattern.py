r"""Regular expressions of requests: read, checked, and written anew for the grammar compiler.

A pattern is read here, not by the compiler, for three reasons: a construct that is not enforced must be refused with
its position; dialects disagree about ``\d``, ``.`` or ``\W``, and what we generate has to match in all of them; and
JSON Schema searches where a request's ``regex`` matches the whole. So every class is written with the members that
Python's ``re``, ECMAScript and the compiler agree on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

MAX_DEPTH = 64
"""Groups within groups."""
MAX_REPEAT = 10_000
"""Largest count of a quantifier."""

ANY_TEXT = "(?s:.)*"
"""Any characters, in the compiler's dialect."""

_BLANKS = r"\x{9}-\x{d}\x{20}"
_ALL_BLANKS = (
    r"\x{9}-\x{d}\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
)
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": _BLANKS}
"""Class -> members in every dialect."""
_WIDE = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}\p{M}_", "s": _ALL_BLANKS}
"""Class -> members in some dialect."""
_ANY_CHARACTER = r"[^\x{a}\x{d}\x{85}\x{2028}\x{2029}]"
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_QUANTIFIERS = {"*": "*", "+": "+", "?": "?"}
_REFUSED_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
    "(?P=": "a backreference",
    "(?(": "a conditional group",
    "(?#": "a comment",
}
_REFUSED_ESCAPES = {
    "b": "a word boundary",
    "B": "a word boundary",
    "p": "a Unicode property",
    "P": "a Unicode property",
    "k": "a backreference",
    "A": "an anchor; write ^",
    "Z": "an anchor; write $",
    "z": "an anchor; write $",
    "c": "a control escape; write \\x..",
}


class PatternError(ValueError):
    """A pattern cannot be compiled.

    Attributes:
        position: Character of the pattern, from 0.
        reason: What is there, and what to write instead.
    """

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"at character {position}: {reason}")


def whole_match(pattern: str) -> str:
    """The pattern as ``re.fullmatch`` means it, in the compiler's dialect.

    Raises:
        PatternError: It is malformed or uses a construct that is not enforced.
    """
    return "|".join(f"(?:{branch.body})" for branch in _Reader(pattern).branches())


def search(pattern: str) -> str:
    """The pattern as JSON Schema means it (anywhere, unless anchored), as an anchored one in the compiler's dialect.

    Raises:
        PatternError: It is malformed or uses a construct that is not enforced.
    """
    branches = [
        f"(?:{'' if b.at_start else ANY_TEXT}(?:{b.body}){'' if b.at_end else ANY_TEXT})"
        for b in _Reader(pattern).branches()
    ]
    return f"^(?:{'|'.join(branches)})$"


def literal(text: str) -> str:
    """A pattern of the compiler's dialect for exactly this text."""
    return "".join(_plain(character) for character in text)


@dataclass(slots=True)
class _Branch:
    """One alternative of the whole pattern: its body without the anchors at its ends."""

    body: str
    at_start: bool
    at_end: bool


@dataclass(slots=True)
class _Reader:
    """A cursor on a pattern."""

    text: str
    at: int = 0
    depth: int = 0
    parts: list[str] = field(default_factory=list[str])

    def branches(self) -> list[_Branch]:
        """All alternatives of the whole pattern.

        A group around everything between the anchors, as in ``^(a|b)$``, needs no care: the anchors are outside.
        """
        found = [self._branch()]
        while self._take("|"):
            found.append(self._branch())
        if self.at < len(self.text):
            self._fail("an unmatched ')'")
        return found

    def _branch(self) -> _Branch:
        at_start = self._take("^")
        body = self._sequence()
        return _Branch(body, at_start, self._take("$"))

    def _sequence(self) -> str:
        """Everything up to a ``|``, a ``)``, the end, or an anchor that ends a branch."""
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self._is_last_anchor():
                break
            parts.append(self._repeated(self._atom()))
        return "".join(parts)

    def _is_last_anchor(self) -> bool:
        return self.depth == 0 and self.text[self.at] == "$" and self.text[self.at + 1 : self.at + 2] in ("", "|")

    def _atom(self) -> str:
        character = self.text[self.at]
        if character in "^$":
            self._fail(f"{character!r} is only understood at the ends of the pattern or of an alternative of it")
        if character in _QUANTIFIERS:
            self._fail(f"{character!r} has nothing to repeat; write \\{character} for the character")
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == "\\":
            return self._escape()
        self.at += 1
        return _ANY_CHARACTER if character == "." else _plain_or_fail(self, character)

    def _group(self) -> str:
        start = self.at
        self._open_group()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} groups within each other", start)
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if not self._take(")"):
            self._fail("an unmatched '('", start)
        self.depth -= 1
        return f"(?:{'|'.join(branches)})"

    def _open_group(self) -> None:
        rest = self.text[self.at : self.at + 4]
        for spelling, name in _REFUSED_GROUPS.items():
            if rest.startswith(spelling):
                self._fail(f"{spelling} is {name}, which is not enforced; write the pattern without it")
        if rest.startswith("(?:"):
            self.at += 3
        elif rest.startswith(("(?P<", "(?<")):
            end = self.text.find(">", self.at)
            name = self.text[self.text.index("<", self.at) + 1 : max(end, 0)]
            if end < 0 or not name.isidentifier():
                self._fail("a group whose name is not closed or no name")
            self.at = end + 1
        elif rest.startswith("(?"):
            self._fail("inline flags are not enforced; write the characters out, as [aA] for a case")
        else:
            self.at += 1

    def _repeated(self, atom: str) -> str:
        """The atom with its quantifier; a lazy one matches the same texts."""
        start = self.at
        quantifier = self._quantifier()
        if not quantifier:
            return atom
        self._take("?")
        if self._take("+"):
            self._fail("a possessive quantifier, which is not enforced", start)
        if self.at < len(self.text) and (self.text[self.at] in "*?" or self._counts(self.at)):
            self._fail("a quantifier behind a quantifier; group what is repeated")
        return f"(?:{atom}){quantifier}"

    def _quantifier(self) -> str:
        found = self.text[self.at : self.at + 1]
        if found in _QUANTIFIERS and found:
            self.at += 1
            return found
        counts = self._counts(self.at)
        if counts is None:
            return ""
        start = self.at
        low, high, self.at = counts
        if max(low, high or 0) > MAX_REPEAT:
            self._fail(f"a repeat of more than {MAX_REPEAT}", start)
        if high is not None and high < low:
            self._fail(f"a repeat of {low} to {high}, which is empty", start)
        return f"{{{low}}}" if high == low else f"{{{low},{'' if high is None else high}}}"

    def _counts(self, at: int) -> tuple[int, int | None, int] | None:
        """``{2}``, ``{2,}`` or ``{2,5}`` at a place: least, most and the place behind, or None."""
        if self.text[at : at + 1] != "{":
            return None
        end = self.text.find("}", at)
        low, comma, high = self.text[at + 1 : max(end, at + 1)].partition(",")
        if not low and comma and high.isascii() and high.isdigit():
            self._fail("a repeat without its least count, which dialects read in two ways; write {0,n}", at)
        if end < 0 or not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        return int(low), (int(high) if high else None if comma else int(low)), end + 1

    def _escape(self) -> str:
        """An escape outside a set."""
        character = self._escaped_class()
        if character:
            name = character.lower()
            return f"[{_NARROW[name]}]" if character.islower() else f"[^{_WIDE[name]}]"
        return _plain_or_fail(self, self._escaped_character())

    def _escaped_class(self) -> str:
        """The letter of an escape for a class of characters, or nothing."""
        letter = self.text[self.at + 1 : self.at + 2]
        if not letter or letter not in "dDwWsS":
            return ""
        self.at += 2
        return letter

    def _escaped_character(self) -> str:
        start, letter = self.at, self.text[self.at + 1 : self.at + 2]
        if not letter:
            self._fail("a backslash at the end")
        if letter in _REFUSED_ESCAPES:
            self._fail(f"\\{letter} is {_REFUSED_ESCAPES[letter]}; it is not enforced")
        if letter.isdigit() and letter != "0":
            self._fail(f"\\{letter} is a backreference, which is not enforced")
        self.at += 2
        if letter in "xu":
            return self._hexadecimal(start, 2 if letter == "x" else 4)
        if letter == "0" and not self.text[self.at : self.at + 1].isdigit():
            return "\0"
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter.isascii() and letter.isalnum():
            self._fail(f"\\{letter} has no meaning that dialects agree on", start)
        return letter

    def _hexadecimal(self, start: int, digits: int) -> str:
        text = self.text[self.at : self.at + digits]
        if len(text) < digits or not all(c in "0123456789abcdefABCDEF" for c in text):
            self._fail(f"an escape without its {digits} hexadecimal digits", start)
        self.at += digits
        return chr(int(text, 16))

    def _set(self) -> str:
        start = self.at
        self.at += 1
        inverted = self._take("^")
        members: list[str] = []
        while not self._take("]"):
            if self.at >= len(self.text):
                self._fail("a set that is not closed", start)
            members.append(self._member(inverted))
        if not members:
            self._fail("an empty set, which dialects read in two ways; write \\] for the bracket", start)
        return f"[{'^' if inverted else ''}{''.join(members)}]"

    def _member(self, inverted: bool) -> str:
        """One character, range or class of a set; of an inverted set classes count with all their members."""
        letter = self._escaped_class() if self.text[self.at] == "\\" else ""
        if letter:
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self._fail("a range that begins with a class")
            return _class_in_set(letter, inverted)
        start, low = self.at, self._set_character()
        if self.text[self.at : self.at + 1] != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return _plain_or_fail(self, low)
        self.at += 1
        if self.text[self.at] == "\\" and self._escaped_class():
            self._fail("a range that ends with a class", start)
        high = self._set_character()
        if high < low:
            self._fail(f"a range from {low!r} down to {high!r}", start)
        return f"{_plain_or_fail(self, low)}-{_plain_or_fail(self, high)}"

    def _set_character(self) -> str:
        if self.text[self.at] != "\\":
            self.at += 1
            return self.text[self.at - 1]
        if self.text[self.at + 1 : self.at + 2] == "b":
            self.at += 2
            return "\b"
        return self._escaped_character()

    def _take(self, character: str) -> bool:
        found = self.text[self.at : self.at + 1] == character
        self.at += found
        return found

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise PatternError(self.at if position is None else position, reason)


def _class_in_set(letter: str, inverted: bool) -> str:
    members = (_WIDE if inverted else _NARROW) if letter.islower() else (_NARROW if inverted else _WIDE)
    return f"[{'' if letter.islower() else '^'}{members[letter.lower()]}]"


def _plain(character: str) -> str:
    return character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):x}}}"


def _plain_or_fail(reader: _Reader, character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        raise PatternError(reader.at, "half a surrogate pair, which no text holds")
    return _plain(character)
