"""The same request gives the same tokens: in any company and order, in chunks, after any number of preemptions.

With float32 numerics these are promises. With the released numerics a neighbour may change how a backend sums a row, so
that a rounding to bfloat16 or FP8 falls the other way: there the tokens of a request may change where two are close.
"""

from __future__ import annotations

import random

import pytest

from deepinfer_core import SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from tests.engine.conftest import MakeEngine, question

NUM_REQUESTS = 4
BLOCK_BYTES = 35840
TEXT = "Tell a story about a zebra named Anton. Repeat exactly: red fox blue lamp. Compute 60 + 15. Copy this: owl. "
CHOICES = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 1.2, "top_p": 0.95, "frequency_penalty": 0.1}}

Tokens = dict[str, tuple[int, ...]]


def prompts(opened: OpenedModel) -> dict[str, list[int]]:
    """Requests that fill most of their first cache block, so that they need a second one while they run."""
    assert opened.tokenizer is not None
    ids = opened.tokenizer.encode(question(TEXT * 4))
    return {str(number): ids[number : number + 121 + number] for number in range(NUM_REQUESTS)}


def params(name: str, request_id: str) -> SamplingParams:
    seed = int(request_id) if name == "seeded" else None
    return SamplingParams(max_tokens=9, ignore_eos=True, seed=seed, **CHOICES[name])


def tokens(engine: Engine, name: str, requests: dict[str, list[int]]) -> Tokens:
    for request_id, ids in requests.items():
        engine.add(request_id, ids, params(name, request_id))
    found = {record.request_id: tuple(record.outputs[0].token_ids) for record in engine.run() if record.finished}
    engine.scheduler.require_all_free()
    return found


@pytest.fixture(scope="module", params=CHOICES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(name: str, opened_f32: OpenedModel, make_engine: MakeEngine) -> Tokens:
    """Tokens of each request when nobody else is there."""
    engine = make_engine(opened_f32, max_num_seqs=1)
    return tokens(engine, name, prompts(opened_f32))


def test_company_and_order_change_no_token(
    name: str, alone: Tokens, opened_f32: OpenedModel, make_engine: MakeEngine
) -> None:
    requests = prompts(opened_f32)

    order = random.Random(1).sample(sorted(requests), NUM_REQUESTS)

    assert order != sorted(requests)
    assert tokens(make_engine(opened_f32), name, {i: requests[i] for i in order}) == alone


def test_chunks_change_no_token(name: str, alone: Tokens, opened_f32: OpenedModel, make_engine: MakeEngine) -> None:
    engine = make_engine(opened_f32, max_num_batched_tokens=50)

    assert tokens(engine, name, prompts(opened_f32)) == alone


def test_preemption_changes_no_token(
    name: str, alone: Tokens, opened_f32: OpenedModel, make_engine: MakeEngine
) -> None:
    engine = make_engine(opened_f32, kv_cache_memory_gib=5.5 * BLOCK_BYTES / 2**30)

    assert tokens(engine, name, prompts(opened_f32)) == alone
    assert engine.statistics().num_blocks == 5
    assert engine.statistics().num_preemptions > 0


def test_aborts_of_neighbours_change_no_token(
    name: str, alone: Tokens, opened_f32: OpenedModel, make_engine: MakeEngine
) -> None:
    engine = make_engine(opened_f32)
    requests = prompts(opened_f32)
    for request_id, ids in requests.items():
        engine.add(request_id, ids, params(name, request_id))

    for _ in range(4):
        engine.step()
    engine.abort("1")
    engine.abort("3")
    ended = {record.request_id: tuple(record.outputs[0].token_ids) for record in engine.run() if record.finished}

    assert {i: ended[i] for i in "02"} == {i: alone[i] for i in "02"}
    assert ended["1"] == alone["1"][: len(ended["1"])]


def test_the_released_numerics_repeat_a_batch_exactly(opened: OpenedModel, make_engine: MakeEngine) -> None:
    first, second = (tokens(make_engine(), "seeded", prompts(opened)) for _ in range(2))

    assert first == second
