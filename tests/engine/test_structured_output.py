"""Outputs that must follow a schema or a pattern do, in any company; what cannot be done fails alone and says why."""

from __future__ import annotations

import json
import re
import time

import jsonschema
import pytest

from deepinfer_core import LLM, SamplingParams, StructuredOutputsParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.errors import RequestError
from tests.engine.conftest import MakeEngine, question

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = [
    ({"json": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None),
    ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]{2}", text) is not None),
    ({"choice": ["red", "green"]}, lambda text: text in ("red", "green")),
]


def run(engine: Engine, llm: LLM, forms: list[dict[str, object]], **fields: object) -> list[str]:
    for number, form in enumerate(forms):
        params = SamplingParams(
            structured_outputs=StructuredOutputsParams(**form),
            **{"max_tokens": 120, "temperature": 1.0, "seed": number, **fields},
        )
        engine.add(str(number), llm.encode(question("Who are you?")), params)
    found = {record.request_id: record for record in engine.run() if record.finished}
    assert [found[str(number)].outputs[0].error for number in range(len(forms))] == [""] * len(forms)
    return [found[str(number)].outputs[0].text for number in range(len(forms))]


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_outputs_follow_their_form_at_temperature_one(llm: LLM, make_engine: MakeEngine, overlap: str) -> None:
    texts = run(make_engine(overlap=overlap), llm, [form for form, _ in FORMS] * 4)

    for text, (form, is_valid) in zip(texts, FORMS * 4, strict=True):
        assert is_valid(text), (form, text)


def test_a_request_without_a_form_is_not_touched_by_its_neighbours(llm: LLM, make_engine: MakeEngine) -> None:
    params, prompt = SamplingParams(temperature=0.0, max_tokens=6), llm.encode(question("What is 2 plus 3?"))
    alone, shared = make_engine(), make_engine()
    alone.add("free", prompt, params)
    [expected] = [record for record in alone.run() if record.finished]
    shared.add("free", prompt, params)
    shared.add("bound", prompt, SamplingParams(structured_outputs={"regex": "[xyz]+"}, max_tokens=4, seed=1))

    found = {record.request_id: record for record in shared.run() if record.finished}

    assert found["free"].outputs[0].token_ids == expected.outputs[0].token_ids
    assert re.fullmatch("[xyz]+", found["bound"].outputs[0].text)


def test_what_cannot_be_compiled_fails_alone_with_its_reason(llm: LLM, make_engine: MakeEngine) -> None:
    engine, prompt = make_engine(), llm.encode(question("What is 2 plus 3?"))
    engine.add("good", prompt, SamplingParams(temperature=0.0, max_tokens=4))
    unenforced = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    engine.add("bad", prompt, SamplingParams(structured_outputs={"json": unenforced}, max_tokens=4))

    found = {record.request_id: record for record in engine.run() if record.finished}

    assert found["good"].outputs[0].finish_reason in ("stop", "length")
    assert found["bad"].outputs[0].finish_reason == "error"
    assert "/properties/a" in found["bad"].outputs[0].error
    assert "not" in found["bad"].outputs[0].error
    engine.scheduler.require_all_free()


def test_unenforced_keywords_can_be_warned_of_instead(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine()
    form = {"json": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}}
    params = SamplingParams(structured_outputs={**form, "unenforced": "warn"}, max_tokens=40, seed=1)
    engine.add("a", llm.encode(question("Count.")), params)

    [last] = [record for record in engine.run() if record.finished]

    assert any("uniqueItems" in warning for warning in last.warnings)


def test_requests_that_wait_for_their_grammar_can_be_aborted_and_time_out(llm: LLM, make_engine: MakeEngine) -> None:
    engine, prompt = make_engine(), llm.encode(question("Count."))
    params = SamplingParams(structured_outputs={"json_object": True}, max_tokens=4)
    engine.add("aborted", prompt, params)
    engine.add("late", prompt, params, timeout_s=0.001)
    engine.add("discarded", prompt, params)
    engine.abort("aborted")
    engine.discard(["discarded"])
    time.sleep(0.01)

    ended = {record.request_id: record.outputs[0].finish_reason for record in engine.run() if record.finished}

    assert ended == {"aborted": "abort", "late": "timeout"}


def test_a_preempted_output_goes_on_in_its_grammar(llm: LLM, make_engine: MakeEngine) -> None:
    pattern = "[a-z]{30}-[0-9]{30}"
    form = {"regex": pattern}
    engine = make_engine(kv_cache_memory_gib=3 * 35840 / 2**30, headroom_blocks=0, max_num_seqs=3)
    padding = [5 + place % 900 for place in range(100)]
    for number in range(6):
        params = SamplingParams(structured_outputs=form, max_tokens=80, temperature=1.0, seed=number)
        engine.add(str(number), padding + llm.encode(question("Who?")), params)

    texts = [record.outputs[0].text for record in engine.run() if record.finished]

    assert len(texts) == 6
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert engine.statistics().num_preemptions > 0


def test_several_answers_have_each_their_own_place(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(n=3, structured_outputs={"regex": "[0-9]{2,9}"}, max_tokens=20, temperature=1.0, seed=5)
    engine.add("a", llm.encode(question("A number?")), params)

    [last] = [record for record in engine.run() if record.finished]

    assert all(re.fullmatch("[0-9]{2,9}", output.text) for output in last.outputs)
    assert len({output.text for output in last.outputs}) > 1


def test_a_malformed_form_is_refused_when_it_is_made() -> None:
    with pytest.raises(RequestError, match="exactly one"):
        SamplingParams(structured_outputs={"regex": "a", "json_object": True})
