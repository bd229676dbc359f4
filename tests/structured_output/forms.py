"""More than two hundred schemas and patterns that are compiled and walked through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def schemas() -> Iterator[tuple[str, Any]]:
    """Name and JSON schema."""
    for family in (_integers, _numbers, _strings, _arrays, _objects, _values, _combined, _references):
        for index, schema in enumerate(family()):
            yield f"{family.__name__[1:]}_{index}", schema


def _integers() -> Iterator[Any]:
    yield INTEGER
    for low, high in [
        (0, 0),
        (0, 9),
        (-5, 5),
        (1, 100),
        (-1000, -17),
        (95, 1005),
        (0, 2**31),
        (-(2**53), 2**53),
        (7, 8),
    ]:
        yield {"type": "integer", "minimum": low, "maximum": high}
    for low, high in [(0, 10), (-3, 3), (99, 102), (-100, -90)]:
        yield {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
    for divisor in (2, 3, 7, 10, 25):
        yield {"type": "integer", "multipleOf": divisor, "minimum": -200, "maximum": 500}
    yield {"type": "integer", "minimum": 2.5, "maximum": 7.5}
    yield {"type": "integer", "minimum": 10}
    yield {"type": "integer", "maximum": -10}
    yield {"type": "integer", "minimum": 5, "exclusiveMinimum": 3, "maximum": 20, "exclusiveMaximum": 9}


def _numbers() -> Iterator[Any]:
    yield {"type": "number"}
    for low, high in [
        (0, 1),
        (-1, 1),
        (0.5, 0.75),
        (-2.25, 1e3),
        (1e-9, 1e-3),
        (0.1, 0.3),
        (-1e15, 1e15),
        (99.9, 100.1),
    ]:
        yield {"type": "number", "minimum": low, "maximum": high}
    for low, high in [(0, 1), (-0.5, 0.5), (1, 2), (-10, 0), (0.1, 0.2)]:
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    for divisor in (0.5, 0.25, 2, 5):
        yield {"type": "number", "multipleOf": divisor, "minimum": -50, "maximum": 50}
    yield {"type": "number", "minimum": 3}
    yield {"type": "number", "maximum": 3}
    yield {"type": "number", "exclusiveMinimum": 0}
    yield {"type": ["number", "null"], "minimum": 1, "maximum": 2}


def _strings() -> Iterator[Any]:
    yield STRING
    for low, high in [(0, 0), (1, 1), (0, 5), (3, 3), (2, 10), (10, 40)]:
        yield {"type": "string", "minLength": low, "maxLength": high}
    patterns = [
        r"^[a-z]+$",
        r"^\d{3}-\d{4}$",
        r"\S",
        "^(foo|bar)+$",
        r"^[^\s]{1,8}$",
        r"^\w+@\w+\.(com|org)$",
        "^[\u4e2d-\u9fa5]{2}$",
        "^[\u00e9\u00e8]x?$",
        r"^.{1,4}$",
        r"^#[0-9a-fA-F]{6}$",
        r"^\D\W\S$",
        "^(?:[A-Z]{2}|[a-z]{3})(?:-(?:x|yy)){0,2}$",
        r"^$|^a+$",
        r"^\u00e9{2}$",
        r"^[\d\-.]+$",
        r"^[^\W\d_]{2,5}$",
        "^\U0001f600{1,2}$",
    ]
    for pattern in patterns:
        yield {"type": "string", "pattern": pattern}
    for pattern in ("^ab|c$", r'^"[^"\\]*"$', "a.c", r"[\d.]{3}"):
        yield {
            "type": "string",
            "pattern": pattern,
            "maxLength": 9,
        }  # nothing else would bring a random model to an end
    yield {"type": "string", "pattern": "^[a-z]*$", "minLength": 4, "maxLength": 6}
    yield {"type": "string", "pattern": "^[a-f0-9-]*$", "format": "uuid"}
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"):
        yield {"type": "string", "format": name}
    yield {"type": ["string", "null"], "format": "date"}


def _arrays() -> Iterator[Any]:
    yield {"type": "array"}
    for items in (INTEGER, {"type": "boolean"}, {"type": "string", "maxLength": 4}, {"enum": ["a", "b"]}):
        for low, high in [(0, 0), (0, 2), (1, 3), (4, 4)]:
            yield {"type": "array", "items": items, "minItems": low, "maxItems": high}
    yield {"type": "array", "prefixItems": [INTEGER, STRING], "items": {"type": "null"}, "maxItems": 4}
    yield {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}, {"const": 3}], "maxItems": 2}
    yield {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}}}
    yield {"type": "array", "items": INTEGER, "minItems": 3}
    yield {"type": "array", "uniqueItems": False, "items": {"type": "null"}}
    yield {"type": "array", "uniqueItems": True, "maxItems": 1}


def _objects() -> Iterator[Any]:
    yield {"type": "object"}
    person = {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}
    for required in ([], ["name"], ["age"], ["name", "age"]):
        for extra in (True, False, {"type": "boolean"}):
            yield {"type": "object", "properties": person, "required": required, "additionalProperties": extra}
    odd_names = ['a"b', "a\\b", "a/b", "\u00e9", "\u4e2d\u6587", "a b", "", "\n", "\U0001f600", "$ref", "type"]
    yield {"type": "object", "properties": dict.fromkeys(odd_names, INTEGER), "required": odd_names}
    yield {"type": "object", "properties": dict.fromkeys(odd_names[:4], INTEGER)}
    yield {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": {"type": "null"}}
    yield {"type": "object", "patternProperties": {"^a": INTEGER, "^b": STRING}, "additionalProperties": False}
    yield {
        "type": "object",
        "patternProperties": {r"^x\d$": {"minimum": 3, "type": "integer"}},
        "properties": {"x1": {"maximum": 9}, "y": {"type": "null"}},
        "required": ["x1", "y"],
    }
    yield {"type": "object", "properties": {"a": False, "b": INTEGER}, "required": ["b"]}
    yield {"type": "object", "required": ["p", "q"], "additionalProperties": {"type": "integer"}}
    yield {"type": "object", "minProperties": 1, "additionalProperties": INTEGER}
    yield {"type": "object", "maxProperties": 2, "additionalProperties": INTEGER}
    yield {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "minProperties": 2, "maxProperties": 3}
    yield {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "minProperties": 1}
    deep: Any = INTEGER
    for level in range(12):
        deep = {
            "type": "object",
            "properties": {f"k{level}": deep},
            "required": [f"k{level}"],
            "additionalProperties": False,
        }
    yield deep


def _values() -> Iterator[Any]:
    for value in (
        "a",
        "\u4e2d\u6587 \U0001f600",
        'quote " back \\',
        1,
        -7,
        1.5,
        None,
        True,
        [1, "x"],
        {"a": [1, {"b": None}]},
    ):
        yield {"const": value}
    yield {"enum": ["red", "green", "blue"]}
    yield {"enum": ["\u00e9t\u00e9", "\u4e2d", "\U0001f600", "line\nbreak", "tab\t"]}
    yield {"enum": [1, 2.5, "x", None, False, [], {}]}
    yield {"enum": [1, 2, 3, "a"], "type": "integer"}
    yield {"enum": list(range(50))}
    yield {"type": "boolean"}
    yield {"type": "null"}
    yield {"type": ["integer", "boolean", "null"]}
    yield {"enum": [2**53, -(2**53)]}
    yield {"title": "t", "description": "d", "default": 3, "examples": [1], "x-more": {"not": 1}, "type": "integer"}


def _combined() -> Iterator[Any]:
    yield {"anyOf": [INTEGER, {"type": "string", "maxLength": 3}]}
    yield {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x+$"}]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}, {"multipleOf": 2}]}
    yield {
        "allOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}}],
        "type": "object",
    }
    yield {
        "type": "object",
        "properties": {"a": STRING},
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    yield {"oneOf": [INTEGER, STRING, {"type": "null"}]}
    yield {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "size": INTEGER}, "required": ["kind", "size"]}
            for kind in ("cat", "dog", "bird")
        ]
    }
    yield {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {
            kind: {"type": "object", "properties": {"kind": {"const": kind}, kind: INTEGER}, "required": ["kind", kind]}
            for kind in ("cat", "dog")
        },
    }
    yield {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 6}]}
    yield {"type": "integer", "anyOf": [{"maximum": -5}, {"minimum": 5}], "minimum": -9, "maximum": 9}
    yield {"allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 2}, {"const": 3}]}]}
    yield {"anyOf": [{"type": "array", "items": INTEGER, "maxItems": 3}, {"type": "object", "maxProperties": 1}]}
    yield {"minimum": 3, "maxLength": 2, "maxItems": 1, "maxProperties": 1}
    yield {
        "oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "string", "format": "date"}],
        "type": ["integer", "string"],
    }


def _references() -> Iterator[Any]:
    yield {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer", "minimum": 2, "maximum": 4}}}
    yield {"$ref": "#/$defs/a", "maxLength": 2, "$defs": {"a": STRING}}
    yield {"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"enum": ["x", "y"]}}}
    yield {"$ref": "#/components/schemas/X", "components": {"schemas": {"X": INTEGER}}, "x-y": 1} | {"x-y": 2}
    yield {"type": "object", "properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]}
    yield {
        "type": "object",
        "properties": {"value": INTEGER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    yield {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"v": {"$ref": "#/$defs/v"}, "c": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                "required": ["v", "c"],
                "additionalProperties": False,
            },
            "v": {"enum": ["\u00e9", "\u4e2d", 3]},
        },
    }
    yield {
        "$ref": "#/$defs/even",
        "$defs": {
            "even": {"type": "array", "items": {"$ref": "#/$defs/odd"}, "maxItems": 2},
            "odd": {"type": "array", "items": {"$ref": "#/$defs/even"}, "minItems": 1, "maxItems": 1},
        },
    }
    chain = {f"s{n}": {"$ref": f"#/$defs/s{n + 1}"} for n in range(20)}
    yield {"$ref": "#/$defs/s0", "$defs": {**chain, "s20": {"type": "boolean"}}}
    yield {
        "type": "object",
        "properties": {
            "p": {"$ref": "#/$defs/p"},
            "q": {"type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
        },
        "required": ["p", "q"],
        "$defs": {"p": {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]}, "n": INTEGER},
    }


PATTERNS = [
    r"[a-z]+",
    r"\d{4}-\d{2}-\d{2}",
    r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)",
    "(foo|bar|baz){1,3}",
    "[\u4e2d-\u9fa5]{2}",
    "[\u00e9]+",
    "[^a-z]{1,5}",
    r"\w+\s\w+",
    r"[^\W\d_]{2,8}",
    r"\D\S\W",
    r".{0,6}",
    "(a|)",
    "a*",
    "(ab?)*c",
    r"\$\d+\.\d{2}",
    r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,3})?",
    r'"(\\"|[^"\\])*"',
    r"[\]\[\\^-]+",
    r"[a\-z]{3}",
    r"(?P<year>\d{4})(?P<month>0[1-9]|1[0-2])",
    r"(?:x(?:y(?:z)*)*)*",
    r"^anchored$",
    r"^a|b$",
    r"\x41\u00e9\t",
    r"[\x20-\x7e]{1,20}",
    "[\U0001f600-\U0001f64f]{1,2}",
    r"a{3}b{2,}c{0,2}",
    r"(a|b|)*x",
    r"yes|no|maybe",
    r"[01]{8}",
    r"#([0-9a-f]{3}|[0-9a-f]{6})",
    r"\(\d{3}\) \d{3}-\d{4}",
    r"[A-Z][a-z]*( [A-Z][a-z]*)*",
    r"https?://[a-z]+\.(com|org)(/[a-z]*)*",
    r"\{\"a\": \d+\}",
    r"[^\n]*",
    r"a+?b*?c??",
    r"[\s\S]{1,4}",
    r"[\d\s]{2,4}",
    r"x{2,4}|y{1}",
]
