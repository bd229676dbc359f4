"""Goals of a benchmark, and who keeps them."""

from __future__ import annotations

import pytest

from deepinfer_core.engine.benchmark import Measurement, RequestTimes
from deepinfer_core.engine.benchmark_goals import Goal, num_good, parse_goals
from deepinfer_core.errors import ConfigError


def test_goals_are_in_milliseconds_and_in_vllms_spelling_too() -> None:
    assert parse_goals(["ttft:500", "tpot:12.5", "e2el:3000"]) == (
        Goal("ttft", 0.5),
        Goal("tpot", 0.0125),
        Goal("e2e", 3.0),
    )
    assert str(Goal("tpot", 0.0125)) == "tpot 12.5 ms"
    assert parse_goals([]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft", "'ttft' is no goal; give KIND:MILLISECONDS with KIND one of ttft, tpot, e2e"),
        ("itl:5", "'itl:5' is no goal"),
        ("tfft:5", "did you mean 'ttft'?"),
        ("ttft:fast", "'ttft:fast': 'fast' must be a number of milliseconds above 0"),
        ("ttft:", "must be a number of milliseconds above 0"),
        ("ttft:0", "must be a number of milliseconds above 0"),
        ("ttft:-3", "must be a number of milliseconds above 0"),
        ("ttft:inf", "must be a number of milliseconds above 0"),
        ("ttft:nan", "must be a number of milliseconds above 0"),
    ],
)
def test_what_is_no_goal_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_goals([text])

    assert message in str(caught.value)


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_goals(["e2e:1", "e2el:2", "tpot:x", "tiny"])

    assert len(caught.value.problems) == 3
    assert "e2e has 2 goals; give one" in caught.value.problems


def request(first: float, per_token: float | None, total: float, error: str = "") -> RequestTimes:
    return RequestTimes(
        num_prompt_tokens=1, num_output_tokens=1, first_token_s=first, token_s=per_token, total_s=total, error=error
    )


def test_good_is_who_keeps_every_goal_without_an_error() -> None:
    requests = (
        request(0.5, 0.05, 2.0),
        request(0.51, 0.01, 1.0),
        request(0.1, 0.06, 1.0),
        request(0.1, 0.01, 2.1),
        request(0.1, None, 0.1),
        request(0.0, None, 0.0, error="not finite"),
    )
    measured = Measurement(requests=requests, duration_s=4.0)

    assert num_good(measured, parse_goals(["ttft:500", "tpot:50", "e2e:2000"])) == 2
    assert num_good(measured, parse_goals(["tpot:50"])) == 4
    assert num_good(measured, ()) == 5
