"""Everything that a model of random logits generates under a grammar, at temperature 1, belongs to the grammar."""

from __future__ import annotations

import datetime
import json
import re
import zlib
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.structured_output.forms import PATTERNS, schemas
from tests.structured_output.workshop import accepts, compiled, walk

SCHEMAS = list(schemas())
WALKS = 8
LEAST_FINISHED = 1.0

CHECKER = jsonschema.FormatChecker()


@CHECKER.checks("time", raises=ValueError)  # the library's own is that of draft 3
def _is_time(text: object) -> bool:
    return not isinstance(text, str) or datetime.time.fromisoformat(text).tzinfo is not None


@CHECKER.checks("date-time", raises=ValueError)
def _is_date_time(text: object) -> bool:
    return not isinstance(text, str) or bool(datetime.datetime.fromisoformat(text).tzinfo)


def walks(name: str, form: dict[str, Any]) -> list[str]:
    """Finished outputs; nearly all have to finish."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    grammar = compiled(**form)
    found = [walk(grammar.matcher(), rng) for _ in range(WALKS)]
    finished = [one.data.decode() for one in found if one.is_finished]
    assert len(finished) >= LEAST_FINISHED * WALKS, [one.data[-80:] for one in found if not one.is_finished]
    return finished


@pytest.mark.parametrize(("name", "schema"), SCHEMAS, ids=[name for name, _ in SCHEMAS])
def test_outputs_validate(name: str, schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)

    for text in walks(name, {"json": schema}):
        errors = [error.message for error in validator.iter_errors(json.loads(text))]
        assert errors == [], text


@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
def test_outputs_match(pattern: str) -> None:
    for text in walks(pattern, {"regex": pattern}):
        assert re.fullmatch(pattern, text), text


def test_there_are_two_hundred_of_them() -> None:
    distinct = {json.dumps(schema) for _, schema in SCHEMAS} | set(PATTERNS)

    assert len(distinct) == len(SCHEMAS) + len(PATTERNS) >= 200


@pytest.mark.parametrize("whitespace", ["bounded", "none", "any"])
def test_whitespace_is_that_of_the_request(whitespace: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = compiled(json=schema, whitespace=whitespace)

    assert accepts(grammar, '{"a":1}')
    assert accepts(grammar, '{\n  "a": 1\n}') == (whitespace != "none")
    assert accepts(grammar, '{"a":\n\n1}') == (whitespace == "any")
    assert accepts(grammar, '{"a":' + " " * 21 + "1}") == (whitespace == "any")
    assert not accepts(grammar, ' {"a":1}')
    assert not accepts(grammar, '{"a":1} ')
