"""What a request asks of the form of its output, in vLLM's words."""

from __future__ import annotations

import json as json_text
import numbers
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from deepinfer_core.errors import RequestError, describe, nearest

MAX_SOURCE_CHARACTERS = 1_000_000
"""The longest schema, grammar or pattern."""
MAX_NESTING = 64
"""The deepest nesting of a schema's JSON."""
MAX_CHOICES = 10_000
"""The most texts of a choice."""
MAX_TRIGGER_TOKENS = 256
"""The longest trigger."""

Kind = Literal["json", "regex", "choice", "grammar", "json_object", "structural_tag"]
KINDS: tuple[Kind, ...] = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
WHITESPACE = ("bounded", "none", "any")
UNENFORCED = ("refuse", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The language that the output of a request must belong to; exactly one of the first six fields is given.

    Attributes:
        json: A JSON schema, as a mapping or as its text; stored as text.
        regex: A regular expression that the whole output matches.
        choice: Texts, one of which is the output.
        grammar: A context-free grammar: Lark, or GBNF/EBNF where a rule is written with ``::=``.
        json_object: True: any JSON object.
        structural_tag: Free text in which every trigger begins a tag with a schema of its own: ``{"structures":
            [{"begin", "schema", "end"}, ...], "triggers": [...]}``, as a mapping or as its text; stored as text.
        whitespace: Between the parts of a JSON text: ``bounded`` allows one line break and 20 blanks, ``none``
            nothing, ``any`` whatever the model writes, without an end if it likes.
        unenforced: What happens to a keyword of a schema that cannot be enforced: ``refuse`` refuses the request,
            ``warn`` leaves the keyword out and lists it in the warnings of the output.
        trigger_token_ids: The form begins behind this sequence of tokens; what comes before is free.
        bound_token_id: Ends the free text: once it appears the trigger is forced, then the form; needs a trigger.

    Raises:
        RequestError: A field is wrong, or not exactly one form is given; all problems are listed.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    whitespace: Literal["bounded", "none", "any"] = "bounded"
    unenforced: Literal["refuse", "warn"] = "refuse"
    trigger_token_ids: Sequence[int] = ()
    bound_token_id: int | None = None

    def __post_init__(self) -> None:
        """Check every field, then store it as text, numbers or tuples."""
        plain, problems = _read({field.name: getattr(self, field.name) for field in fields(self)})
        if problems:
            raise RequestError(describe("structured_outputs", problems))
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def kind(self) -> Kind:
        """Which of the forms is given."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def source(self) -> str:
        """The form as text; a JSON list for a choice, empty for ``json_object``."""
        value = getattr(self, self.kind)
        if self.kind == "json_object":
            return ""
        return json_text.dumps(value, ensure_ascii=False) if self.kind == "choice" else str(value)

    @property
    def grammar_key(self) -> tuple[str, ...]:
        """What a compiled grammar depends on: requests with equal keys can share it."""
        return (self.kind, self.source, self.whitespace, self.unenforced)


def read_structured_outputs(value: Any) -> tuple[StructuredOutputsParams | None, list[str]]:
    """The parameters, given as such or as a mapping of the same names, and what is wrong with them."""
    if value is None or isinstance(value, StructuredOutputsParams):
        return value, []
    if not isinstance(value, Mapping):
        wrong = f"structured_outputs={reprlib.repr(value)} must be StructuredOutputsParams or a mapping of its fields"
        return None, [wrong]
    names = [field.name for field in fields(StructuredOutputsParams)]
    unknown = [name for name in value if name not in names]
    problems = [f"structured_outputs has no field {name!r}{nearest(str(name), names)}" for name in unknown]
    given = {str(name): given for name, given in value.items() if name in names}
    defaults = {field.name: field.default for field in fields(StructuredOutputsParams)}
    problems += [f"structured_outputs: {problem}" for problem in _read({**defaults, **given})[1]]
    return (None, problems) if problems else (StructuredOutputsParams(**given), [])


def _read(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Plain values of the fields, and problems."""
    problems: list[str] = []
    plain = {
        "json": _document("json", given["json"], problems),
        "regex": _text("regex", given["regex"], problems),
        "choice": _choice(given["choice"], problems),
        "grammar": _text("grammar", given["grammar"], problems),
        "json_object": _json_object(given["json_object"], problems),
        "structural_tag": _document("structural_tag", given["structural_tag"], problems),
        "whitespace": _one_of("whitespace", given["whitespace"], WHITESPACE, problems),
        "unenforced": _one_of("unenforced", given["unenforced"], UNENFORCED, problems),
        "trigger_token_ids": _trigger(given["trigger_token_ids"], problems),
        "bound_token_id": given["bound_token_id"],
    }
    forms = [kind for kind in KINDS if given[kind] is not None]
    if len(forms) != 1:
        found = f"{' and '.join(forms)} are given" if forms else "none is given"
        problems.append(f"give exactly one of {', '.join(KINDS)}; {found}")
    bound = given["bound_token_id"]
    if bound is not None and not _is_token(bound):
        problems.append(f"bound_token_id={reprlib.repr(bound)} must be a token id, an integer from 0")
    if bound is not None and not given["trigger_token_ids"]:
        problems.append("bound_token_id needs trigger_token_ids: it forces the trigger")
    return plain, problems


def _text(name: str, value: Any, problems: list[str]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        problems.append(f"{name}={reprlib.repr(value)} must be a text that is not empty")
        return None
    if len(value) > MAX_SOURCE_CHARACTERS:
        problems.append(f"{name} has {len(value)} characters; at most {MAX_SOURCE_CHARACTERS} are compiled")
    if any("\ud800" <= character <= "\udfff" for character in value):
        problems.append(f"{name} holds half a surrogate pair; send well-formed text")
    return value


def _document(name: str, value: Any, problems: list[str]) -> str | None:
    """A JSON document as text, whichever way it was given."""
    if value is None:
        return None
    if isinstance(value, str):
        text = _text(name, value, problems)
    elif isinstance(value, Mapping):
        text = _text(name, _dump(name, cast(Mapping[str, Any], value), problems), problems)
    else:
        problems.append(f"{name}={reprlib.repr(value)} must be a mapping or a JSON text")
        return None
    if text is not None:
        problems += _document_problems(name, text)
    return text


def _dump(name: str, value: Mapping[str, Any], problems: list[str]) -> str | None:
    try:
        return json_text.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        problems.append(f"{name} is no JSON document ({error}); use only texts, finite numbers, lists and mappings")
        return None


def _document_problems(name: str, text: str) -> list[str]:
    """What is wrong with the JSON of a text; the depth is counted before the text is parsed."""
    depth = _nesting(text)
    if depth > MAX_NESTING:
        return [f"{name} is nested {depth} deep; at most {MAX_NESTING} levels are compiled"]
    try:
        json_text.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        return [f"{name} is no JSON text: {error}"]
    return []


def _nesting(text: str) -> int:
    """The deepest level of brackets outside quoted texts."""
    depth = deepest = 0
    quoted = escaped = False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _choice(value: Any, problems: list[str]) -> tuple[str, ...] | None:
    if value is None:
        return None
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else ()
    if not found or not all(isinstance(text, str) and text for text in found):
        problems.append(f"choice={reprlib.repr(value)} must be a list of texts, none of them empty")
        return None
    if len(found) > MAX_CHOICES:
        problems.append(f"choice has {len(found)} texts; at most {MAX_CHOICES} are compiled")
    for text in found:
        _text("a text of choice", text, problems)
    return found


def _json_object(value: Any, problems: list[str]) -> bool | None:
    if value is not None and value is not True:
        problems.append(f"json_object={reprlib.repr(value)} must be True, or left out")
    return value if value is True else None


def _one_of(name: str, value: Any, allowed: Sequence[str], problems: list[str]) -> str:
    if value in allowed:
        return str(value)
    problems.append(f"{name}={reprlib.repr(value)} must be one of {', '.join(allowed)}")
    return allowed[0]


def _trigger(value: Any, problems: list[str]) -> tuple[int, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    found = tuple(cast(Iterable[Any], value)) if is_list else ()
    if not is_list or not all(_is_token(token) for token in found):
        problems.append(f"trigger_token_ids={reprlib.repr(value)} must be a list of token ids, integers from 0")
        return ()
    if len(found) > MAX_TRIGGER_TOKENS:
        problems.append(f"trigger_token_ids has {len(found)} tokens; at most {MAX_TRIGGER_TOKENS}")
    return tuple(int(token) for token in found)


def _is_token(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 0
