"""Forms hold inside blocks of drafts: masks follow the drafts, and switch on behind a trigger among them (B6, B7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from deepinfer_core import RequestOutput, SamplingParams
from tests.engine.conftest import question
from tests.engine.drafting import (
    BLOCK,
    BLOCK_BYTES,
    EOS,
    Asked,
    Lengths,
    Tally,
    block_at,
    finish,
    model,
    random_lengths,
    right_until,
    same_as_plain,
    shown,
    start,
)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "[a-c]{3}-[0-9]{12}"},
    "choice": {"choice": ["red fox", "green owl", "greenish owl"]},
}
TIGHT = {"kv_cache_memory_gib": 3 * BLOCK_BYTES / 2**30, "headroom_blocks": 0}
USER = 1248
"""A special token, which no form allows."""
ORANGE = 405
PLACE = 6
"""Place of ``orange`` in the answer; the end token follows."""


@cache
def prompt(accelerator: str) -> list[int]:
    tokenizer = model(accelerator).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(question("Reverse the words: orange pink white red gold blue gray"))


@cache
def plain(accelerator: str, form: str, temperature: float) -> Mapping[str, RequestOutput]:
    return finish(start(model(accelerator, 0)), asked(accelerator, form, temperature))


def asked(accelerator: str, form: str, temperature: float) -> Asked:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=40, structured_outputs=FORMS[form], logprobs=1)
    return {"a": (prompt(accelerator), params)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_the_plain_answer(accelerator: str, form: str, temperature: float) -> None:
    expected = plain(accelerator, form, temperature)
    engine = start(model(accelerator))

    found = finish(engine, asked(accelerator, form, temperature))

    assert shown(found) == shown(expected)
    assert found["a"].outputs[0].error == ""


@pytest.mark.parametrize("form", FORMS)
def test_drafts_that_the_form_forbids_are_rejected_where_they_are(accelerator: str, form: str) -> None:
    """At each place of a block, in requests side by side; what stands before them is accepted."""
    request = asked(accelerator, form, 0.0)["a"]
    answer = plain(accelerator, form, 0.0)["a"]
    text = [*prompt(accelerator), *answer.outputs[0].token_ids]
    many: Asked = {str(place): (request[0], _seeded(form, place)) for place in range(BLOCK)}

    def choose(row: Any, anchor: int, made: list[int]) -> list[int]:
        true = right_until(text)(row, anchor, made)
        return [*true[: row.seed], *[USER] * (len(made) - row.seed)]

    engine = start(model(accelerator), choose=choose)
    tally = Tally().watch(engine)

    found = finish(engine, many)

    assert {str(o.token_ids) for record in found.values() for o in record.outputs} == {str(answer.outputs[0].token_ids)}
    for place in range(BLOCK):
        blocks = tally.blocks[str(place)][:-1]
        assert {accepted for _, accepted in blocks} <= {place}


def _seeded(form: str, seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=seed, max_tokens=40, structured_outputs=FORMS[form])


@pytest.mark.parametrize("drafts", ["free", "right"])
@pytest.mark.parametrize(
    "form",
    [
        {"regex": "[0-9]{5}", "trigger_token_ids": [ORANGE]},
        {"regex": "[0-9]{5}", "trigger_token_ids": [450, ORANGE]},
        {"regex": "[0-9]{5}", "trigger_token_ids": [451, 429], "bound_token_id": ORANGE},
    ],
    ids=["one_token", "two_tokens", "bound"],
)
def test_a_form_begins_behind_its_trigger_at_each_place_of_a_block(
    accelerator: str, form: dict[str, Any], drafts: str
) -> None:
    """Drafts go on behind the trigger as if there were no form, or as the form wants it."""
    params = SamplingParams(temperature=0.0, max_tokens=30, structured_outputs=form, skip_special_tokens=False)
    wanted: Asked = {str(offset): (prompt(accelerator), params) for offset in range(BLOCK + 1)}
    free = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    text_params = free if drafts == "free" else params
    text = finish(start(model(accelerator, 0)), {"a": (prompt(accelerator), text_params)})["a"].outputs[0].token_ids
    planner = block_at({str(offset): PLACE - offset for offset in range(BLOCK + 1)})
    engine = start(model(accelerator), planner=planner, choose=right_until([*prompt(accelerator), *text]))

    found = same_as_plain(accelerator, engine, wanted)

    assert all(re.search(r"orange.*[0-9]{5}$", record.outputs[0].text) for record in found.values())
    starts = {request_id: [begin for begin, _ in blocks] for request_id, blocks in planner.verified.items()}
    assert all(PLACE - offset in starts[str(offset)] for offset in range(BLOCK + 1))


def test_forms_and_free_answers_share_steps(accelerator: str) -> None:
    """At several temperatures, with adversarial drafts, and after preemptions."""
    padding = [5 + place % 900 for place in range(95)]
    many: Asked = {
        f"{name}{temperature}": (
            padding + prompt(accelerator),
            SamplingParams(temperature=temperature, seed=len(name), max_tokens=30, structured_outputs=form, n=count),
        )
        for name, form in [*FORMS.items(), ("free", None)]
        for temperature, count in ((0.0, 1), (1.0, 2))
    }
    expected = shown(finish(start(model(accelerator, 0)), many))

    def choose(_: Any, anchor: int, made: list[int]) -> list[int]:
        made[anchor % BLOCK] = (USER, EOS, 35)[anchor % 3]
        return made

    engine = start(model(accelerator), choose=choose, planner=random_lengths(4), **TIGHT)

    assert shown(finish(engine, many)) == expected
    assert engine.statistics().num_preemptions > 0


def test_rejection_keeps_forms(accelerator: str) -> None:
    """Drafts that are drawn without the form; the outputs follow it all the same."""
    pattern = "[a-c]{3}-[0-9]{12}"
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=40, structured_outputs={"regex": pattern})
        for seed in range(6)
    ]
    many: Asked = {str(number): (prompt(accelerator), one) for number, one in enumerate(params)}

    found = finish(start(model(accelerator, coupled=False), planner=Lengths(lambda _, limit: limit)), many)

    texts = [record.outputs[0].text for record in found.values()]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) > 1
