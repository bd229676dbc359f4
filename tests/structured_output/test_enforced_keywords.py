"""What the compiler enforces, keyword by keyword, and what it is refused for.

The table of docs/structured-output.md states these results.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import llguidance
import pytest

from deepinfer_core.errors import RequestError
from deepinfer_core.structured_output.schema_handlers import HANDLERS
from deepinfer_core.structured_output.schema_keywords import UNENFORCED
from tests.structured_output.workshop import accepts, compiled, native_tokenizer, tokens_of

OBJECT = {"type": "object"}

ENFORCED: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "integer"}, [0, -7, 10**6], [1.5, "1", None, True, [1]]),
    ({"type": "number"}, [0, 1.5, -2e10], ["1", None]),
    ({"type": ["null", "boolean"]}, [None, True, False], [0, "null"]),
    ({"enum": ["a", 1, None, [1]]}, ["a", 1, None, [1]], ["b", 2, [], [1, 1]]),
    ({"const": {"a": [1, 2]}}, [{"a": [1, 2]}], [{"a": [1]}, {}, {"a": [1, 2], "b": 1}]),
    ({"minimum": 3, "type": "integer"}, [3, 40], [2, -3]),
    ({"maximum": 3, "type": "number"}, [3, 2.99, -40], [3.01, 4]),
    ({"exclusiveMinimum": 3, "type": "integer"}, [4], [3]),
    ({"exclusiveMaximum": 3, "type": "number"}, [2.9, 2.99, 2.999, 2.95, -1], [3, 3.1]),
    ({"maximum": 3.25, "type": "number"}, [3.25, 3.2, 3.24, 3], [3.3, 3.26]),
    ({"minimum": -3.25, "type": ["number", "null"]}, [-3.25, -3.2, 0, None], [-3.3, -3.26, "a"]),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, [0, 12, -24], [4, 6]),
    ({"multipleOf": 5, "type": "integer"}, [0, 5, -10], [1, 12]),
    ({"multipleOf": 0.5, "type": "number"}, [0.5, 2, -1.5], [0.25, 1.1]),
    ({"minLength": 2, "type": "string"}, ["ab", "\u4e2d\u4e2d", "abc"], ["", "a", "\u4e2d"]),
    ({"maxLength": 2, "type": "string"}, ["", "\u4e2d\u4e2d", "\n\n", "\U0001f600x"], ["abc", "\u4e2d\u4e2d\u4e2d"]),
    ({"pattern": "b+", "type": "string"}, ["b", "abba"], ["", "a"]),
    ({"pattern": "^(a|b)$", "type": "string"}, ["a", "b"], ["", "ab"]),
    ({"format": "date", "type": "string"}, ["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-13-01", "x"]),
    ({"format": "ipv4", "type": "string"}, ["1.2.3.255"], ["1.2.3.256", "1.2.3"]),
    ({"items": {"type": "integer"}, "type": "array"}, [[], [1, 2]], [["a"], [1, None]]),
    (
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "type": "array"},
        [[1, "a"], [1]],
        [["a"], [1, "a", 2]],
    ),
    ({"minItems": 2, "type": "array"}, [[1, 2], [1, 2, 3]], [[], [1]]),
    ({"maxItems": 2, "type": "array"}, [[], [1, 2]], [[1, 2, 3]]),
    ({"uniqueItems": True, "maxItems": 1, "type": "array"}, [[], [1]], [[1, 1]]),
    ({"properties": {"a": {"type": "integer"}}, **OBJECT}, [{}, {"a": 1}, {"b": "x"}], [{"a": "x"}]),
    ({"required": ["a"], **OBJECT}, [{"a": 1}], [{}, {"b": 1}]),
    ({"properties": {"a": {}}, "additionalProperties": False, **OBJECT}, [{"a": 1}, {}], [{"b": 1}]),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}, **OBJECT}, [{"a": 1, "b": None}], [{"b": 1}]),
    ({"patternProperties": {"^x": {"type": "integer"}}, **OBJECT}, [{"x1": 1}, {"y": "a"}], [{"x1": "a"}]),
    ({"minProperties": 1, **OBJECT}, [{"a": 1}], [{}]),
    ({"maxProperties": 1, **OBJECT}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, [1, "x"], ["y", None]),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "a"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, [1]]),
    ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, ["a"], ["ab", 1]),
    (
        {"additionalItems": {"type": "null"}, "items": [{"type": "integer"}], "type": "array"},
        [[1, None]],
        [["a"], [1, 1]],
    ),
    # a schema that says nothing of the type leaves the other types free
    ({"minimum": 3}, [3, "a", None, [1]], [2]),
    # keywords beside combinators, case A12
    (
        {
            "properties": {"a": {}},
            "additionalProperties": False,
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            **OBJECT,
        },
        [{"a": 1}],
        [17, [1, 2], {}, {"b": 1}],
    ),
]

REFUSED: list[tuple[Any, str, str]] = [
    ({"not": {"const": 1}}, "#", "not"),
    ({"if": {}, "then": False}, "#", "if"),
    ({"then": {}}, "#", "then"),
    ({"else": {}}, "#", "else"),
    ({"dependencies": {}}, "#", "dependencies"),
    ({"dependentRequired": {"a": ["b"]}}, "#", "dependentRequired"),
    ({"dependentSchemas": {}}, "#", "dependentSchemas"),
    ({"propertyNames": {"maxLength": 3}}, "#", "propertyNames"),
    ({"contains": {"const": 1}}, "#", "contains"),
    ({"minContains": 2}, "#", "minContains"),
    ({"maxContains": 2}, "#", "maxContains"),
    ({"unevaluatedItems": False}, "#", "unevaluatedItems"),
    ({"unevaluatedProperties": False}, "#", "unevaluatedProperties"),
    ({"$dynamicRef": "#x"}, "#", "$dynamicRef"),
    ({"$recursiveRef": "#"}, "#", "$recursiveRef"),
    ({"$recursiveAnchor": True}, "#", "$recursiveAnchor"),
    ({"$vocabulary": {}}, "#", "$vocabulary"),
    ({"nullable": True}, "#", "nullable"),
    ({"items": {"uniqueItems": True}}, "#/items", "uniqueItems"),
    ({"properties": {"a/b": {"not": {}}}}, "#/properties/a~1b", "not"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"contains": {}}}, "unused": {"not": {}}}},
        "#/$defs/a/items",
        "contains",
    ),
    ({"allOf": [{}, {"not": {}}]}, "#/allOf/1", "not"),
    ({"patternProperties": {"^a": {"if": {}}}}, "#/patternProperties/^a", "if"),
    ({"additionalProperties": {"not": {}}}, "#/additionalProperties", "not"),
    ({"prefixItems": [{"not": {}}]}, "#/prefixItems/0", "not"),
    ({"format": "regex"}, "#", "format"),
    ({"format": "idn-email"}, "#", "format"),
    ({"pattern": "(?=a)b"}, "#", "pattern"),
    ({"pattern": r"(a)\1"}, "#", "pattern"),
    ({"patternProperties": {r"\bx": {}}}, "#", "patternProperties"),
    ({"patternProperties": {"^a": {}, "b$": {}}}, "#", "patternProperties"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#", "oneOf"),
    ({"properties": {"a": {"oneOf": [{"maxLength": 3}, {"minLength": 2}]}}}, "#/properties/a", "oneOf"),
    ({"minProperties": 2}, "#", "minProperties"),
    ({"properties": {"a": {}}, "minProperties": 1, **OBJECT}, "#", "minProperties"),
    ({"properties": {"a": {}}, "maxProperties": 1, **OBJECT}, "#", "maxProperties"),
    ({"prefixItems": [{"type": "integer"}], "additionalItems": False}, "#", "additionalItems"),
    ({"const": 2**53 + 1}, "#", "const"),
    ({"enum": [1, 1e300]}, "#", "enum"),
    ({"enum": [0.30000000000000004]}, "#", "enum"),
    ({"minimum": 2**60}, "#", "minimum"),
    ({"exclusiveMaximum": 1e-20}, "#", "exclusiveMaximum"),
    ({"multipleOf": 1e-20}, "#", "multipleOf"),
    ({"multipleOf": 997, "items": {"multipleOf": 991}}, "#/items", "multipleOf"),
    ({"$ref": "https://example.org/schema"}, "#", "$ref"),
    ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "#", "$ref"),
    ({"properties": {"a": {"$id": "x"}}}, "#/properties/a", "$id"),
    ({"properties": {"a": {"maxLenght": 3}}}, "#/properties/a", "maxLenght"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "#", "not"),
]

MALFORMED: list[tuple[Any, str]] = [
    ({"type": "strin"}, "#: 'type' must be one of"),
    ({"type": []}, "#: 'type' must be a list that is not empty"),
    ({"enum": []}, "#: 'enum' must be a list that is not empty"),
    ({"anyOf": {}}, "#: 'anyOf' must be a list"),
    ({"properties": []}, "#: 'properties' must be a mapping"),
    ({"properties": {"a": 3}}, "#/properties/a: a schema must be a mapping, true or false"),
    ({"required": "a"}, "#: 'required' must be a list"),
    ({"required": [1]}, "#: 'required' must be a list of texts"),
    ({"minLength": -1}, "#: 'minLength' must be a whole number from 0"),
    ({"maxItems": 1.5}, "#: 'maxItems' must be a whole number from 0"),
    ({"minimum": "3"}, "#: 'minimum' must be a number"),
    ({"exclusiveMinimum": True}, "#: 'exclusiveMinimum' must be a number"),
    ({"multipleOf": 0}, "#: 'multipleOf' must be above 0"),
    ({"pattern": 3}, "#: 'pattern' must be a text"),
    ({"uniqueItems": 1}, "#: 'uniqueItems' must be true or false"),
    ({"$ref": "#/$defs/none"}, "'#/$defs/none' points to nothing in the schema"),
    ({"items": [{}], "prefixItems": [{}]}, "#: 'items' must be a schema beside prefixItems"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"$ref": "#/$defs/a"}}},
        "refers to itself",
    ),
    ({"$ref": "#"}, "refers to itself"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable schema"),
    ({"required": ["a"], "additionalProperties": False, "type": "object"}, "Unsatisfiable schema"),
]


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED, ids=lambda case: str(case)[:40])
def test_keyword_is_enforced(schema: Any, good: list[Any], bad: list[Any]) -> None:
    grammar = compiled(json=schema)
    draft = jsonschema.Draft7Validator if "additionalItems" in schema else jsonschema.Draft202012Validator
    validator = draft(schema, format_checker=jsonschema.FormatChecker())

    assert [validator.is_valid(value) for value in (*good, *bad)] == [True] * len(good) + [False] * len(bad)
    assert [value for value in good if not accepts(grammar, written(value))] == []
    assert [value for value in bad if accepts(grammar, written(value))] == []


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED, ids=lambda case: str(case)[:40])
def test_keyword_is_refused_with_its_place(schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(RequestError) as refusal:
        compiled(json=schema)

    assert f"{pointer}: {keyword!r} is not enforced: " in str(refusal.value)


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED, ids=lambda case: str(case)[:40])
def test_keyword_is_left_out_with_a_warning(schema: Any, pointer: str, keyword: str) -> None:
    warnings = compiled(json=schema, unenforced="warn").warnings

    assert any(warning.startswith(f"{pointer}: {keyword!r} is not enforced: ") for warning in warnings)


@pytest.mark.parametrize(("schema", "message"), MALFORMED, ids=lambda case: str(case)[:40])
@pytest.mark.parametrize("unenforced", ["refuse", "warn"])
def test_malformed_schema_is_refused_whatever_the_option(schema: Any, message: str, unenforced: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        compiled(json=schema, unenforced=unenforced)

    assert message in str(refusal.value)


def test_every_keyword_has_a_case() -> None:
    enforced = {keyword for schema, _, _ in ENFORCED for keyword in schema}
    refused = {keyword for _, _, keyword in REFUSED}

    assert set(HANDLERS) - enforced - {"id", "$id"} == set()
    assert set(UNENFORCED) - refused == set()


def test_every_keyword_of_the_specification_is_known() -> None:
    vocabularies = jsonschema.Draft202012Validator.META_SCHEMA["allOf"]
    from jsonschema_specifications import REGISTRY

    names: set[str] = set()
    for part in vocabularies:
        uri = f"https://json-schema.org/draft/2020-12/{part['$ref']}"
        names |= set(REGISTRY.contents(uri)["properties"])
    from deepinfer_core.structured_output.schema_keywords import ANNOTATIONS

    assert names - set(HANDLERS) - set(UNENFORCED) - ANNOTATIONS == set()


def test_all_problems_are_in_one_message() -> None:
    schema = {"not": {}, "properties": {"a": {"uniqueItems": True}, "b": {"type": "x"}}}

    with pytest.raises(RequestError) as refusal:
        compiled(json=schema)

    assert "3 problems" in str(refusal.value)
    assert "unenforced='warn'" in str(refusal.value)


def accepted_by_the_library(schema: Any, text: str) -> bool:
    """Whether the library alone, without our rewriting, takes the text for an instance."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    found = llguidance.LLMatcher(native_tokenizer(), grammar, log_level=0)
    tokens = tokens_of(text)
    return not found.is_error() and found.try_consume_tokens(tokens) == len(tokens) and found.is_accepting()


LIES = [
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"\\u0061":"x"}'),
    ({"type": "object", "minProperties": 2}, '{"a":1,"a":2}'),
    ({"const": 2**53 + 1}, str(2**53)),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "additionalItems": False}, '["a"]'),
    ({"x-guidance": {"lenient": True}, "type": "integer", "not": {"const": 3}}, "3"),
    ({"type": "integer", "maximun": 3}, "4"),
    ({"type": "string", "format": "date"}, '"2023-02-29"'),
]


@pytest.mark.parametrize(("schema", "text"), LIES, ids=lambda case: str(case)[:40])
def test_what_the_library_alone_would_let_pass_is_not_let_pass_here(schema: Any, text: str) -> None:
    assert accepted_by_the_library(schema, text), "the library has learned this: the rule for it can go"
    try:
        grammar = compiled(json=schema)
    except RequestError:
        return
    assert not accepts(grammar, text)
