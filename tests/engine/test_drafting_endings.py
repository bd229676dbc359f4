"""Where an answer ends, and what may come in it, inside a block of drafts as between single tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from deepinfer_core import RequestOutput, SamplingParams
from tests.engine.conftest import question
from tests.engine.drafting import (
    BLOCK,
    EOS,
    Asked,
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

QUESTION = question("Reverse the words: orange pink white red gold blue gray")
END = 7
"""Place of the end token in its answer: ``gray blue gold red white pink orange`` comes before it."""
OFFSETS = range(BLOCK + 1)
"""Place of something in a block: that of a draft, or of the token behind them."""


@cache
def prompt(accelerator: str) -> list[int]:
    tokenizer = model(accelerator).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(QUESTION)


@cache
def endless(accelerator: str, **fields: Any) -> list[int]:
    """The prompt and its plain answer when the end token does not end it."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, **fields)
    found = finish(start(model(accelerator, 0)), {"a": (prompt(accelerator), params)})
    return [*prompt(accelerator), *found["a"].outputs[0].token_ids]


def ended_in_a_block(accelerator: str, place: int, **fields: Any) -> Mapping[str, RequestOutput]:
    """Answers whose token at a place is at each offset of a block of right drafts; shown as plain decoding shows them.

    The drafts are right behind the end, too, as if nothing ended there.
    """
    params = SamplingParams(temperature=0.0, **{"max_tokens": 30, **fields})
    asked: Asked = {str(offset): (prompt(accelerator), params) for offset in OFFSETS}
    planner = block_at({str(offset): place - offset for offset in OFFSETS})
    engine = start(model(accelerator), planner=planner, choose=right_until(endless(accelerator)))
    found = same_as_plain(accelerator, engine, asked)
    starts = {request_id: [begin for begin, _ in blocks] for request_id, blocks in planner.verified.items()}
    assert all(place - offset in starts[str(offset)] for offset in OFFSETS), "the block is another one"
    return found


def test_the_end_token_ends_an_answer_at_each_place_of_a_block(accelerator: str) -> None:
    found = ended_in_a_block(accelerator, END)

    assert endless(accelerator)[len(prompt(accelerator)) + END] == EOS
    assert {record.outputs[0].text for record in found.values()} == {"gray blue gold red white pink orange"}
    assert {(len(r.outputs[0].token_ids), r.outputs[0].finish_reason) for r in found.values()} == {(END + 1, "stop")}


@pytest.mark.parametrize("is_told", [False, True])
def test_a_stop_token_ends_an_answer_at_each_place_of_a_block(accelerator: str, is_told: bool) -> None:
    token = endless(accelerator)[len(prompt(accelerator)) + 6]

    found = ended_in_a_block(accelerator, 6, stop_token_ids=[token], include_stop_str_in_output=is_told)

    assert {record.outputs[0].stop_reason for record in found.values()} == {token}
    assert all(record.outputs[0].text.endswith("orange") == is_told for record in found.values())


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("stop", ["pink ora", " orange", "ed white pink orange"])
def test_a_stop_text_over_several_drafts_ends_an_answer(accelerator: str, stop: str, is_told: bool) -> None:
    found = ended_in_a_block(accelerator, 6, stop=["never", stop], include_stop_str_in_output=is_told)

    text = "gray blue gold red white pink orange"
    end = text.index(stop) + (len(stop) if is_told else 0)
    assert {(r.outputs[0].text, r.outputs[0].stop_reason) for r in found.values()} == {(text[:end], stop)}


def test_an_end_token_that_may_not_end_is_a_token_like_others(accelerator: str) -> None:
    text = endless(accelerator)[len(prompt(accelerator)) :]

    found = ended_in_a_block(accelerator, 9, ignore_eos=True, stop_token_ids=[text[9]])

    assert all(record.outputs[0].token_ids == tuple(text[:10]) for record in found.values())


def test_the_longest_answer_ends_inside_a_block(accelerator: str) -> None:
    """Fewer drafts are verified at the end: those for tokens that nobody wants are left out."""
    params = [SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True) for most in range(1, 16)]
    asked: Asked = {str(number): (prompt(accelerator), one) for number, one in enumerate(params)}
    engine = start(model(accelerator), choose=right_until(endless(accelerator)), max_num_seqs=16)
    tally = Tally().watch(engine)

    found = same_as_plain(accelerator, engine, asked)

    assert [len(found[str(number)].outputs[0].token_ids) for number in range(15)] == list(range(1, 16))
    assert {record.outputs[0].finish_reason for record in found.values()} == {"length"}
    assert tally.verified == tally.accepted
    assert tally.blocks["14"] == [(5, 5), (5, 5), (1, 1)]


@pytest.mark.parametrize("missing", range(1, 9))
def test_the_longest_sequence_ends_inside_a_block(accelerator: str, missing: int) -> None:
    params, limit = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True), len(prompt(accelerator)) + missing
    asked: Asked = {"a": (prompt(accelerator), params)}
    plain = finish(start(model(accelerator, 0), max_model_len=limit), asked)

    found = finish(start(model(accelerator), max_model_len=limit, choose=right_until(endless(accelerator))), asked)

    assert shown(found) == shown(plain)
    assert (len(found["a"].outputs[0].token_ids), found["a"].outputs[0].finish_reason) == (missing, "length")


RULES: dict[str, dict[str, Any]] = {
    "too_early": {"min_tokens": 10},
    "too_early_for_stop_tokens": {"min_tokens": 9, "stop_token_ids": [16, 324]},
    "too_early_for_stop_texts": {"min_tokens": 6, "stop": ["red", "pink"]},
    "bad_words": {"bad_words": ["blue gold", "white pink orange", "happy zebra", "a time"]},
    "repetition": {"repetition_penalty": 1.5, "ignore_eos": True},
    "presence": {"presence_penalty": 1.5, "ignore_eos": True},
    "frequency": {"frequency_penalty": 1.1, "ignore_eos": True},
    "bias": {"logit_bias": {EOS: -100.0, 423: -100.0, 604: 4.0}},
    "allowed": {"allowed_token_ids": [*range(5, 300), EOS], "ignore_eos": True},
    "logprobs": {"logprobs": 5, "prompt_logprobs": 2},
    "many_logprobs": {"logprobs": 40},
    "several": {"n": 3, "logprobs": 1},
    "everything": {
        "min_tokens": 8, "bad_words": ["blue gold"], "repetition_penalty": 1.2, "frequency_penalty": 0.3,
        "logit_bias": {431: -5.0}, "logprobs": 3, "ignore_eos": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_rules_hold_inside_blocks(accelerator: str, rule: str) -> None:
    """Drafts that would be right without the rule are wrong where it bites, and right before.

    Rejection judges greedy requests the same way; coupled drafts keep the tokens at temperature 1, too.
    """
    tokenizer = model(accelerator).tokenizer
    assert tokenizer is not None
    story = tokenizer.encode(question("Tell a story about a zebra named Anton."))
    asked: Asked = {
        f"{kind}{number}": (ids, SamplingParams(**{"max_tokens": 24, **RULES[rule], "temperature": kind, "seed": 3}))
        for number, ids in enumerate((prompt(accelerator), story))
        for kind in ((0.0, 1.0) if "n" not in RULES[rule] else (1.0,))
    }
    plain = shown(finish(start(model(accelerator, 0)), asked))
    free = {tuple(prompt(accelerator)): endless(accelerator)}

    def tempting(row: Any, anchor: int, made: list[int]) -> list[int]:
        """What would come without the rule, and otherwise, at every other anchor, the end token."""
        text = free.get(tuple(row.prompt_token_ids), [])
        return [text[p] if p < len(text) else EOS if anchor % 2 else token for p, token in enumerate(made, anchor + 1)]

    for engine in (
        start(model(accelerator), choose=tempting),
        start(model(accelerator, coupled=False), choose=tempting, planner=random_lengths(1)),
    ):
        coupled = runner_settings(engine)
        wanted = {key: request for key, request in asked.items() if coupled or not request[1].temperature}
        found = shown(finish(engine, wanted))
        assert found == {key: plain[key] for key in wanted}


def runner_settings(engine: Any) -> bool:
    return engine._runner._model.drafting.settings.is_coupled


def test_a_bad_word_is_not_completed_by_a_draft(accelerator: str) -> None:
    """The word begins in an accepted draft at each place of a block, and its end is drafted behind that."""
    found = ended_in_a_block(accelerator, 6, bad_words=["pink orange"])

    assert all(" white pink" in record.outputs[0].text for record in found.values())
    assert all("pink orange" not in record.outputs[0].text for record in found.values())
