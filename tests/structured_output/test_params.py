"""The fields of a request: exactly one form, all problems at once, vLLM's names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deepinfer_core import SamplingParams, StructuredOutputsParams
from deepinfer_core.errors import RequestError
from deepinfer_core.structured_outputs_params import MAX_CHOICES, MAX_NESTING, MAX_SOURCE_CHARACTERS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give exactly one of json, regex, choice, grammar, json_object, structural_tag; none is given"),
        ({"regex": "a", "json": {}}, "json and regex are given"),
        ({"regex": ""}, "regex='' must be a text that is not empty"),
        ({"regex": 3}, "regex=3 must be a text"),
        ({"regex": "a" * (MAX_SOURCE_CHARACTERS + 1)}, f"at most {MAX_SOURCE_CHARACTERS} are compiled"),
        ({"regex": "\ud800"}, "half a surrogate pair"),
        ({"json": "{"}, "json is no JSON text"),
        ({"json": '{"a": NaN}'}, "NaN is no JSON number"),
        ({"json": {"a": float("inf")}}, "json is no JSON document"),
        ({"json": {"a": object()}}, "json is no JSON document"),
        ({"json": True}, "json=True must be a mapping or a JSON text"),
        ({"json": "[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1)}, f"nested {MAX_NESTING + 1} deep"),
        ({"choice": []}, "must be a list of texts"),
        ({"choice": "abc"}, "must be a list of texts"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, f"at most {MAX_CHOICES}"),
        ({"json_object": False}, "json_object=False must be True, or left out"),
        ({"regex": "a", "whitespace": "some"}, "whitespace='some' must be one of bounded, none, any"),
        ({"regex": "a", "unenforced": "ignore"}, "unenforced='ignore' must be one of refuse, warn"),
        ({"regex": "a", "trigger_token_ids": [-1]}, "trigger_token_ids=[-1] must be a list of token ids"),
        ({"regex": "a", "trigger_token_ids": 3}, "trigger_token_ids=3 must be a list of token ids"),
        ({"regex": "a", "trigger_token_ids": [True]}, "must be a list of token ids"),
        ({"regex": "a", "bound_token_id": 3}, "bound_token_id needs trigger_token_ids"),
        ({"regex": "a", "trigger_token_ids": [1], "bound_token_id": "x"}, "bound_token_id='x' must be a token id"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        StructuredOutputsParams(**fields)
    assert message in str(refusal.value)

    with pytest.raises(RequestError) as refusal:
        SamplingParams(structured_outputs=fields)  # type: ignore[arg-type]
    assert message in str(refusal.value)


def test_all_problems_of_a_request_are_in_one_error() -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(temperature=-1, structured_outputs={"regex": "", "whitespac": "none", "unenforced": 1})  # type: ignore[arg-type]

    text = str(refusal.value)
    assert text.startswith("SamplingParams: 4 problems")
    assert "structured_outputs has no field 'whitespac'; did you mean 'whitespace'?" in text


def test_parameters_are_frozen_and_comparable() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    asked = StructuredOutputsParams(json=schema)
    schema["type"] = "array"

    assert asked.json == '{"type": "object", "properties": {"b": {}, "a": {}}}'
    assert asked == StructuredOutputsParams(json=asked.json)
    assert hash(asked) == hash(StructuredOutputsParams(json=asked.json))
    with pytest.raises(AttributeError):
        asked.regex = "a"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"json": {"a": "\u00e9"}}, "json", '{"a": "\u00e9"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"grammar": "root ::= x"}, "grammar", "root ::= x"),
        ({"json_object": True}, "json_object", ""),
        ({"structural_tag": {"triggers": []}}, "structural_tag", '{"triggers": []}'),
    ],
)
def test_kind_and_source(fields: dict[str, Any], kind: str, source: str) -> None:
    asked = StructuredOutputsParams(**fields)

    assert (asked.kind, asked.source) == (kind, source)
    assert SamplingParams(structured_outputs=fields).structured_outputs == asked  # type: ignore[arg-type]


def test_the_grammar_does_not_depend_on_the_trigger() -> None:
    plain, triggered = (StructuredOutputsParams(regex="a", trigger_token_ids=ids) for ids in ([], [4, 5]))

    assert plain.grammar_key == triggered.grammar_key
    assert triggered.trigger_token_ids == (4, 5)


def test_token_ids_are_checked_against_the_model() -> None:
    asked = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="a", trigger_token_ids=[3, 70], bound_token_id=99)
    )

    asked.check_vocabulary(100)
    with pytest.raises(RequestError) as refusal:
        asked.check_vocabulary(64)
    assert "structured_outputs.trigger_token_ids names tokens [70]" in str(refusal.value)
    assert "structured_outputs.bound_token_id names tokens [99]" in str(refusal.value)


def test_going_on_behind_the_end_would_spoil_the_output() -> None:
    with pytest.raises(RequestError, match="ignore_eos goes on behind the end of a structured output"):
        SamplingParams(ignore_eos=True, structured_outputs=StructuredOutputsParams(regex="a"))


def test_a_schema_may_be_true() -> None:
    assert json.loads(StructuredOutputsParams(json="true").source) is True
