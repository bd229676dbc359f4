"""Requests that arrive by themselves, sent to an engine whose time only passes in its steps and in sleep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

import pytest

from deepinfer_core.engine.benchmark import Measurement, RequestTimes, fixed_length
from deepinfer_core.engine.benchmark_load import Load, Timing, measure_load
from deepinfer_core.errors import RequestError
from deepinfer_core.outputs import CompletionOutput, RequestOutput
from deepinfer_core.sampling_params import RequestOutputKind, SamplingParams


class ScriptedEngine:
    """Each step takes a second and gives each of the first ``width`` requests a token; prompts with 13 fail."""

    def __init__(self, width: int = 100) -> None:
        self.width, self.now, self.most = width, 1000.0, 0
        self.left: dict[str, int] = {}
        self.added: list[tuple[float, Sequence[int], int | None]] = []
        self.discarded: list[str] = []
        self.failing: set[str] = set()

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        if not prompt_token_ids or params.n != 1:
            raise RequestError("it has no tokens")

    def add(self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        assert params.output_kind == RequestOutputKind.DELTA
        self.added.append((self.now - 1000.0, prompt_token_ids, params.seed))
        self.left[request_id] = params.max_tokens
        if prompt_token_ids[0] == 13:
            self.failing.add(request_id)
        self.most = max(self.most, len(self.left))

    def step(self) -> list[RequestOutput]:
        self.now += 1.0
        return [self._token(request_id) for request_id in list(self.left)[: self.width]]

    def discard(self, request_ids: Iterable[str]) -> None:
        self.discarded += request_ids
        self.left = {}

    def _token(self, request_id: str) -> RequestOutput:
        error = "not finite" if request_id in self.failing else ""
        self.left[request_id] = 0 if error else self.left[request_id] - 1
        finished = not self.left[request_id]
        if finished:
            del self.left[request_id]
        completion = CompletionOutput(index=0, text="", token_ids=() if error else (5,), error=error)
        return RequestOutput(
            request_id=request_id, prompt=None, prompt_token_ids=(), outputs=(completion,), finished=finished
        )


def measure(engine: ScriptedEngine, prompts: Sequence[Sequence[int]], load: Load, num_tokens: int = 3) -> Measurement:
    timing = Timing(clock=lambda: engine.now, sleep=engine.sleep)
    return measure_load(engine, prompts, fixed_length(num_tokens, temperature=0.0), load, seed=40, timing=timing)


def test_without_a_rate_all_are_sent_at_once_and_every_token_is_timed() -> None:
    engine = ScriptedEngine()

    measured = measure(engine, [[5], [6, 7]], Load())

    assert engine.added == [(0.0, [5], 40), (0.0, [6, 7], 41)]
    assert measured.duration_s == 3.0
    assert measured.requests[1] == RequestTimes(
        num_prompt_tokens=2, num_output_tokens=3, first_token_s=1.0, token_s=1.0, total_s=3.0, gaps_s=(1.0, 1.0)
    )


def test_arrivals_are_poisson_of_the_rate_and_the_same_for_a_seed() -> None:
    load = Load(request_rate=4.0)

    arrivals = load.arrivals(20001, seed=3)

    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert arrivals[0] == 0.0
    assert arrivals == load.arrivals(20001, seed=3)
    assert arrivals != load.arrivals(20001, seed=4)
    assert fmean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert sum(gap > 1 / 4 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), rel=0.03)
    assert load.arrivals(0, seed=3) == ()


def test_requests_are_sent_when_they_are_due_and_the_engine_rests_between() -> None:
    engine = ScriptedEngine()
    load = Load(request_rate=0.02)

    measured = measure(engine, [[5]] * 4, load, num_tokens=2)

    due = load.arrivals(4, seed=40)
    sent = [moment for moment, _, _ in engine.added]
    assert all(-1e-9 < moment - wanted <= 2.0 for moment, wanted in zip(sent, due, strict=True))
    assert measured.duration_s == pytest.approx(sent[-1] + 2.0)
    assert [request.total_s for request in measured.requests] == pytest.approx([2.0] * 4)


def test_a_request_waits_for_its_turn_and_its_times_begin_when_it_is_sent() -> None:
    engine = ScriptedEngine()

    measured = measure(engine, [[5]] * 5, Load(max_concurrency=2))

    assert engine.most == 2
    assert [moment for moment, _, _ in engine.added] == [0.0, 0.0, 3.0, 3.0, 6.0]
    assert {request.first_token_s for request in measured.requests} == {1.0}


def test_the_queue_of_the_engine_counts() -> None:
    measured = measure(ScriptedEngine(width=1), [[5]] * 2, Load())

    assert [request.first_token_s for request in measured.requests] == [1.0, 4.0]


def test_requests_that_fail_are_counted() -> None:
    measured = measure(ScriptedEngine(), [[5], [13]], Load(max_concurrency=1))

    assert measured.num_failed == 1
    assert measured.requests[1].error == "not finite"


def test_a_prompt_that_cannot_be_served_stops_everything_before_it_begins() -> None:
    engine = ScriptedEngine()

    with pytest.raises(RequestError, match="no tokens"):
        measure(engine, [[5], []], Load())

    assert engine.added == []


def test_an_interrupt_leaves_no_request_in_the_engine() -> None:
    class Interrupted(ScriptedEngine):
        def step(self) -> list[RequestOutput]:
            if self.now > 1001:
                raise KeyboardInterrupt
            return super().step()

    engine = Interrupted()

    with pytest.raises(KeyboardInterrupt):
        measure(engine, [[5]] * 2, Load())

    assert engine.discarded == ["load-0", "load-1"]
