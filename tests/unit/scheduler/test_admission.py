"""What is refused when it arrives."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer_core.errors import CapacityError, RequestError
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason
from tests.unit.scheduler.builders import add, make_scheduler, make_sequence, rows, step


def test_prompt_longer_than_a_step_is_refused_without_chunking_and_others_proceed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16, chunked_prefill=False)

    with pytest.raises(
        RequestError, match=r"'long': the prompt has 17 tokens, but max_num_batched_tokens=16.*turn chunk"
    ):
        add(scheduler, "long", num_prompt_tokens=17)
    add(scheduler, "exact", num_prompt_tokens=16)

    assert rows(step(scheduler)) == [("exact", 0, 16)]


def test_prompt_as_long_as_the_model_permits_is_refused_and_one_less_gives_one_token() -> None:
    scheduler = make_scheduler(max_model_len=32)

    with pytest.raises(RequestError, match=r"has 32 tokens, but max_model_len=32 leaves it 31; shorten"):
        add(scheduler, "over", num_prompt_tokens=32)
    [longest] = add(scheduler, "longest", num_prompt_tokens=31)
    step(scheduler)

    assert longest.finish_reason is FinishReason.LENGTH
    assert longest.num_output_tokens == 1


@pytest.mark.parametrize("num_prompt_tokens", [128, 129])
def test_limit_of_a_small_cache_refuses_one_request_and_leaves_the_others_alone(num_prompt_tokens: int) -> None:
    scheduler = make_scheduler(num_blocks=1)

    with pytest.raises(RequestError, match=r"tokens, but the whole cache \(1 blocks of 128\) leaves it 127"):
        add(scheduler, "over", num_prompt_tokens=num_prompt_tokens)
    [healthy] = add(scheduler, "healthy", num_prompt_tokens=120)
    while scheduler.has_unfinished:
        step(scheduler)

    assert scheduler.max_model_len == 128
    assert healthy.finish_reason is FinishReason.LENGTH
    assert healthy.num_tokens == 128
    scheduler.require_all_free()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_prompt_tokens": 0}, "the prompt has no tokens"),
        ({"max_tokens": 0}, "max_tokens=0, but a request generates one token at least"),
        ({"deadline": math.nan}, "its deadline is not a number"),
    ],
)
def test_request_without_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    scheduler = make_scheduler()

    with pytest.raises(RequestError, match=message):
        add(scheduler, "a", **fields)

    assert not scheduler.has_unfinished


def test_all_reasons_are_given_at_once() -> None:
    scheduler = make_scheduler(num_blocks=2, max_model_len=200, max_num_batched_tokens=100, chunked_prefill=False)

    with pytest.raises(RequestError) as raised:
        add(scheduler, "a", num_prompt_tokens=300, max_tokens=0)

    words = ("max_tokens=0", "max_model_len=200", "whole cache", "max_num_batched_tokens=100")
    assert [word for word in words if word not in str(raised.value)] == []


def test_request_id_is_free_again_when_the_request_has_ended() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")

    with pytest.raises(RequestError, match="'a' is unfinished already"):
        add(scheduler, "a")
    scheduler.abort("a")
    add(scheduler, "a")

    assert scheduler.has_unfinished


def test_answers_of_one_request_share_its_id() -> None:
    scheduler = make_scheduler()

    for index in range(3):
        scheduler.add(make_sequence("a", index=index))

    assert [entry.sequence.index for entry in step(scheduler).entries] == [0, 1, 2]


@pytest.mark.parametrize(("num_blocks", "num_state_slots"), [(0, 4), (4, 0)])
def test_cache_without_memory_is_refused(num_blocks: int, num_state_slots: int) -> None:
    config = make_scheduler().config

    with pytest.raises(CapacityError, match=f"{num_blocks} blocks and {num_state_slots} state slots"):
        Scheduler(config, num_blocks=num_blocks, num_state_slots=num_state_slots)
