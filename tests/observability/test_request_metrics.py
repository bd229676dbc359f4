"""Durations of ``RequestOutput.metrics``."""

from __future__ import annotations

import pytest

from deepinfer_core.outputs import RequestMetrics
from tests.observability.sample import request

TIMES = request().times


def test_durations_are_differences_of_times() -> None:
    assert TIMES.queue_time_s == 1.0
    assert TIMES.time_to_first_token_s == 2.0
    assert TIMES.prefill_time_s == 1.0
    assert TIMES.decode_time_s == 2.0
    assert TIMES.inference_time_s == 3.0
    assert TIMES.total_time_s == 5.0
    assert TIMES.time_per_output_token_s == 0.5


@pytest.mark.parametrize(
    "name",
    [
        "time_to_first_token_s",
        "prefill_time_s",
        "decode_time_s",
        "inference_time_s",
        "time_per_output_token_s",
    ],
)
def test_what_has_not_happened_has_no_duration(name: str) -> None:
    assert getattr(RequestMetrics(arrival_time=1.0), name) is None


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_tokens_have_no_time_per_token(number: int) -> None:
    times = RequestMetrics(arrival_time=0.0, first_token_time=1.0, last_token_time=1.0, num_output_tokens=number)

    assert times.time_per_output_token_s is None


def test_an_engine_that_takes_less_down_still_makes_records() -> None:
    assert RequestMetrics(arrival_time=1.0).inter_token_latencies == ()
