"""Patterns, choices, grammars and tags: what they mean, and how they are refused (cases A14 to A17)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.errors import RequestError
from deepinfer_core.structured_output.gbnf import gbnf_to_lark
from deepinfer_core.structured_output.pattern import MAX_DEPTH, PatternError, search, whole_match
from tests.structured_output.workshop import EOS, accepts, allowed, compiled, matcher, token_bytes, tokens_of

ADDRESS = r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("(?=a)ab", 0, "look-ahead"),
        ("x(?<!a)b", 1, "look-behind"),
        ("(?i)ab", 0, "inline flags"),
        (r"\bfoo\b", 0, "word boundary"),
        (r"\p{Han}+", 0, "Unicode property"),
        (r"(\w+)\s\1", 7, "backreference"),
        ("(?P<a>x)(?P=a)", 8, "backreference"),
        ("(?>a)", 0, "atomic"),
        ("a++", 1, "possessive"),
        ("a**", 2, "quantifier behind a quantifier"),
        ("*a", 0, "nothing to repeat"),
        ("a{3,1}", 1, "a repeat of 3 to 1"),
        ("a{,3}", 1, "without its least count"),
        ("a{1,99999}", 1, "more than"),
        ("[", 0, "not closed"),
        ("[]a]", 0, "empty set"),
        ("[z-a]", 1, "down to"),
        (r"[\d-z]", 3, "begins with a class"),
        (r"[a-\d]", 1, "ends with a class"),
        ("a(b", 1, "unmatched '('"),
        ("a)b", 1, "unmatched ')'"),
        ("a$b", 1, "ends of the pattern"),
        ("(^a)", 1, "ends of the pattern"),
        (r"a\q", 1, "no meaning"),
        ("a\\", 1, "backslash at the end"),
        (r"\x4", 0, "hexadecimal"),
        (r"\ud800", 6, "surrogate"),
        ("(" * (MAX_DEPTH + 1), MAX_DEPTH, "groups within each other"),
        ("(?P<1>a)", 0, "no name"),
    ],
)
def test_pattern_is_refused_with_position_and_reason(pattern: str, position: int, reason: str) -> None:
    with pytest.raises(PatternError) as refusal:
        whole_match(pattern)

    assert reason in refusal.value.reason
    assert refusal.value.position == position
    with pytest.raises(RequestError, match=rf"structured_outputs\.regex: at character {position}: "):
        compiled(regex=pattern)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (ADDRESS, ["1.2.3.4", "255.255.255.255"], ["1.2.3.256", "1.2.3"]),
        ("[\u4e2d-\u9fa5]{2}", ["\u4e2d\u6587"], ["\u4e2d", "ab", "\u4e2d\u4e2d\u4e2d"]),
        ("[\u00e9]", ["\u00e9"], ["e", "\u00e8"]),
        (r"[^\u00e9]", ["e", "\u4e2d"], ["\u00e9"]),
        (r"\w", ["a", "_", "7"], ["\u00e9", "-"]),
        (r"\W", ["-", " "], ["a", "\u00e9", "_"]),
        (r"\d+", ["42"], ["\u0663"]),
        (r"[^\W\d]+", ["abc"], ["a1", "a-"]),
        (".", ["a", "\u4e2d"], ["\n", "\u2028", "ab"]),
        ("^a|b$", ["a", "b"], ["ab", "ax"]),
        ("a|", ["a", ""], ["b"]),
        (r"[&&~~--]".replace("--", "-"), ["&", "~", "-"], ["a"]),
        ("[[]", ["["], ["a"]),
        ("a{x}", ["a{x}"], ["ax"]),
        (r'"\/', ['"/'], ['"\\/']),
    ],
)
def test_pattern_matches_the_whole_output(pattern: str, good: list[str], bad: list[str]) -> None:
    grammar = compiled(regex=pattern)

    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\S", ["a b", "x"], ["", " "]),
        ("^ab|c$", ["abx", "xc"], ["xabx", ""]),
        ("^$", [""], ["a"]),
        ("a.c", ["xabcx"], ["a\nc"]),
    ],
)
def test_pattern_of_a_schema_searches(pattern: str, good: list[str], bad: list[str]) -> None:
    assert search(pattern).startswith("^")
    grammar = compiled(json={"type": "string", "pattern": pattern})

    assert [text for text in good if not accepts(grammar, f'"{text}"')] == []
    assert [text for text in bad if accepts(grammar, '"' + text.replace("\n", "\\n") + '"')] == []


def test_partial_bytes_come_only_if_they_can_still_become_a_character() -> None:
    """Case A15: the tokens of the tiny model split these characters."""
    found = matcher(regex="[\u4e2d-\u9fa5]{2}")
    text = "\u4e2d\u9fa5".encode()

    for at in range(len(text)):
        continuations = {token_bytes()[token] for token in allowed(found)}
        assert text[at : at + 1] in {data[:1] for data in continuations}
        assert all(data[:1] >= b"\x80" for data in continuations)
        assert found.accept(tokens_of(text)[at])
    assert allowed(found) == {EOS}


def test_choice_is_one_of_the_texts() -> None:
    texts = ["yes", 'a"b', "\u4e2d/\u6587\n", "yes, but", "(x|y)"]
    grammar = compiled(choice=texts)

    assert [text for text in texts if not accepts(grammar, text)] == []
    assert [text for text in ("", "ye", "yes,", "x", "no") if accepts(grammar, text)] == []


def test_json_object_is_any_object() -> None:
    grammar = compiled(json_object=True)

    assert accepts(grammar, '{"a": [1, {"b": null}]}')
    assert [text for text in ("[]", "1", "", '{"a"}') if accepts(grammar, text)] == []


GBNF = [
    ('root ::= word "x"\nword ::= [a-z]*', ["abx", "xx", "x"], ["", "ab"]),
    ("root ::= [\u00e9]", ["\u00e9"], ["e"]),
    (
        'root ::= "[" (num (", " num)*)? "]" # list\nnum ::= [0-9]+ | "\\u00e9"\n  | "\\x41"',
        ["[1, 22]", "[]", "[A]"],
        ["[1,2]"],
    ),
    ('root ::= "a"{2} | ', ["aa", ""], ["a"]),
    ('root ::= "(" root ")" | [0-9]+ "x"', ["((1x))", "22x"], ["(1x", "1"]),
    ('root ::= ("ab")*', ["", "abab"], ["a"]),
    ('root ::= . "\\n" [^a&\\]\\[-]', ["a\nb", "\n\n/"], ["a\na", "a\n]"]),
    ('root ::= ""', [""], ['""']),
    ('root ::= "/" | e\ne ::= ""', ["/", ""], ["//"]),
    ('root ::= a-b "\\"" \na-b ::= "\\\\" | [\\U0001F600]', ['\\"', '\U0001f600"'], ['"']),
    ('root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9] | "(" expr ")"', ["1+(2+3)", "1"], ["1+", "(1"]),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), GBNF)
def test_gbnf_means_what_it_says(grammar: str, good: list[str], bad: list[str]) -> None:
    form = compiled(grammar=grammar)

    assert [text for text in good if not accepts(form, text)] == []
    assert [text for text in bad if accepts(form, text)] == []


def test_a_grammar_without_recursion_is_one_pattern() -> None:
    assert gbnf_to_lark('root ::= a "x"\na ::= [a-z]+').splitlines()[1].startswith("start: /")
    assert "r1:" in gbnf_to_lark('root ::= a "x"\na ::= "(" a ")" | [a-z]+')


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= foo", "line 1, column 10: there is no rule 'foo'"),
        ('root ::= "a\nb ::= "c"', "line 1, column 10: "),
        ('x ::= "a"', "line 1, column 1: no rule is called root"),
        ('root ::= "b"\nroot ::= "a"', "line 2, column 1: rule 'root' is defined twice"),
        ('root ::= ("a"', "line 1, column 10: an unmatched '('"),
        ('root ::= "a")', "line 1, column 13: an unmatched ')'"),
        ("root ::= *", "line 1, column 10: '*' has nothing to repeat"),
        ('"a" root ::= "b"', "line 1, column 1: a grammar begins with a rule"),
        ("root ::= [z-a]", "line 1, column 11: a range from 'z' down to 'a'"),
        ('root ::= "\\q"', "\\q is no escape"),
        ('root ::= "\\ud800"', "no character"),
        ("start: foo", 'unknown name: "foo"'),
        ('start: "a', "1("),
        ("start: /(?=a)b/", "look-around"),
        ('start: a\na[temperature=0.7]: "x"', "line 2: temperature is set by the request"),
        ('start: %json {"not": {}}', "line 1, #: 'not' is not enforced"),
        ("start: %json nothing", "line 1: %json without a JSON schema"),
    ],
)
def test_grammar_is_refused_with_position_and_reason(grammar: str, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        compiled(grammar=grammar)

    assert str(refusal.value).startswith("structured_outputs.grammar: ")
    assert message in str(refusal.value)


def test_lark_grammar_with_a_schema_inside() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    grammar = f'start: "<" %json {schema} ">" TAIL\nTAIL: /"%json"?/ // %json'
    form = compiled(grammar=grammar)

    assert accepts(form, '<{"a": 1}>"%json"')
    assert not accepts(form, '<{"a": 1, "\\u0061": "x"}>"%json"')


TAGS: dict[str, Any] = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=bc>", "schema": {"type": "null"}, "end": "</f>"},
        {"begin": "call:", "schema": {"type": "array", "items": {"type": "integer"}}, "end": ""},
    ],
    "triggers": ["<f", "call:"],
}


def test_every_trigger_begins_a_tag() -> None:
    form = compiled(structural_tag=TAGS)
    good = ["", "hello", "<f=a>12</f> ok", "a<f=a>1</f>b<f=bc>null</f>", "<<f=a>1</f>", "<", "call:[1,2] then", "cal"]
    bad = ["hello <f", "x <f=b", "<f=a>q", "<f=a>1</f><f", "call:", 'call:["a"]', "<f=c>1</f>", "<f=a>1"]

    assert [text for text in good if not accepts(form, text)] == []
    assert [text for text in bad if accepts(form, text)] == []


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"format": {}}, "'format' is not known"),
        ({"structures": [], "triggers": ["a"]}, "structures must be a list that is not empty"),
        (
            {"structures": [{"begin": "a"}], "triggers": ["a"]},
            "#/structures/0: must be a mapping of begin, schema, end",
        ),
        ({**TAGS, "triggers": ["<f", "<", "call:"]}, "'<f' contains '<'"),
        ({**TAGS, "triggers": ["<f", "call:", "x"]}, "no tag begins with 'x'"),
        ({**TAGS, "triggers": ["<f"]}, "#/structures/2/schema: begin 'call:' starts with no trigger"),
        (
            {"structures": [{"begin": "a", "schema": {"items": {"not": {}}}, "end": ""}], "triggers": ["a"]},
            "#/structures/0/schema/items: 'not' is not enforced",
        ),
    ],
)
def test_tags_are_refused_with_their_place(tags: Any, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        compiled(structural_tag=tags)

    assert message in str(refusal.value)


def test_blanks_come_to_an_end() -> None:
    """Case A17: a model that writes a line break, or a blank, wherever it may."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    blanks = [token for token, data in enumerate(token_bytes()) if data and not data.strip()]
    found = matcher(json=schema)
    rng = np.random.default_rng(0)
    num_blanks = 0

    while not found.is_terminated:
        may = sorted(allowed(found) & set(blanks))
        if may:
            num_blanks += len(token_bytes()[may[0]])
        token = may[0] if may else int(rng.choice(sorted(allowed(found))))
        token = EOS if EOS in allowed(found) else token
        assert found.accept(token)
        assert num_blanks <= 5 * 21
