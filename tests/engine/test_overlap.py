"""Steps that are launched before the tokens of the ones before are known give the same tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from tests.engine.conftest import MakeEngine, question
from tests.engine.test_failures import Faulty

BLOCK_BYTES = 35840


def requests(llm: LLM, count: int) -> list[tuple[list[int], SamplingParams]]:
    """All that looks at what was generated before: stops, penalties, bad words, minimum lengths, several answers."""
    source = random.Random(3)
    kinds = [
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 0.9, "top_p": 0.9, "seed": 5, "ignore_eos": True},
        {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "seed": 1},
        {"temperature": 0.0, "stop": ["3", "e "]},
        {"temperature": 1.0, "min_tokens": 1, "seed": 2},
        {"temperature": 1.0, "n": 2, "seed": 9, "logprobs": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"temperature": 1.0, "bad_words": ["a", " the"], "seed": 4},
    ]
    return [
        (
            [5 + place % 900 for place in range(95)]  # so that answers grow into another block
            + llm.encode(question(f"How much is {source.randint(1, 90)} plus {source.randint(1, 90)}?")),
            SamplingParams(**kinds[number % len(kinds)], max_tokens=source.choice([1, 2, 17, 40])),
        )
        for number in range(count)
    ]


def outcome(engine: Engine, asked: Sequence[tuple[list[int], SamplingParams]]) -> dict[str, RequestOutput]:
    """Half of the requests at once, the others while the first ones run."""
    found: dict[str, RequestOutput] = {}
    coming = [(str(number), *request) for number, request in enumerate(asked)]
    for request in coming[: len(coming) // 2]:
        engine.add(*request)
    rest = coming[len(coming) // 2 :]
    while engine.has_unfinished or rest:
        if rest:
            engine.add(*rest.pop(0))
        for record in engine.step():
            if record.finished:
                assert record.request_id not in found
                found[record.request_id] = record
    engine.scheduler.require_all_free()
    return found


def shown(records: dict[str, RequestOutput]) -> dict[str, list[tuple[object, ...]]]:
    return {
        request_id: [(o.token_ids, o.text, o.finish_reason, o.stop_reason) for o in record.outputs]
        for request_id, record in records.items()
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"step_policy": "mixed", "max_chunk_tokens": 16},
        {"max_num_batched_tokens": 24},
        {"kv_cache_memory_gib": 3 * BLOCK_BYTES / 2**30, "headroom_blocks": 0},
        {"prefix_cache": "exact"},
    ],
    ids=["plain", "mixed", "small_chunks", "preempted", "prefix_cache"],
)
def test_tokens_are_the_same_with_and_without_overlap(
    llm: LLM, make_engine: MakeEngine, opened_f32: OpenedModel, settings: dict[str, object]
) -> None:
    asked = requests(llm, 24)
    plain = outcome(make_engine(opened_f32), asked)

    engine = make_engine(opened_f32, overlap="on", **settings)
    found = outcome(engine, asked)

    assert shown(found) == shown(plain)
    if "kv_cache_memory_gib" in settings:
        assert engine.statistics().num_preemptions > 0


def test_a_step_runs_before_the_tokens_of_the_one_before_are_taken(llm: LLM, make_engine: MakeEngine) -> None:
    pending: list[bool] = []
    engine = make_engine(
        overlap="on",
        wrap_executor=lambda inner: Faulty(
            inner, before_run=lambda rows: pending.append(any(-1 in row.token_ids for row in rows))
        ),
    )
    engine.add("a", llm.encode(question("What is 2 plus 3?")), SamplingParams(temperature=0.0, max_tokens=6))

    records = [len(engine.step()) for _ in range(3)]

    assert records == [0, 1, 1], "the first call launches, the others tell what the call before launched"
    assert pending == [False, True, True]
    list(engine.run())
    assert len(pending) <= 6, "no row is run for a token that max_tokens forbids"


def test_aborted_requests_give_their_memory_back_when_their_steps_have_ended(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(overlap="on")
    for number in range(4):
        engine.add(str(number), llm.encode(question("Tell me a story.")), SamplingParams(max_tokens=50))
    for _ in range(3):
        engine.step()
    engine.abort("1")
    engine.discard(["2"])
    engine.add("2", llm.encode(question("What is 2 plus 3?")), SamplingParams(temperature=0.0, max_tokens=4))

    ended = [record.request_id for record in engine.run() if record.finished]

    assert sorted(ended) == ["0", "1", "2", "3"]
    engine.scheduler.require_all_free()


def test_closing_with_steps_in_flight_frees_everything(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(overlap="on")
    engine.add("a", llm.encode(question("Tell me a story.")), SamplingParams(max_tokens=50))
    engine.step()
    engine.step()

    [last] = engine.close()

    assert last.finished
    engine.scheduler.require_all_free()
