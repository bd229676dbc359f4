"""What a benchmark makes of what it measures, with a model that takes no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.engine.benchmark import (
    Measurement,
    RequestTimes,
    fixed_length,
    measure_latency,
    measure_throughput,
    random_prompts,
    summaries,
    summarize,
)
from deepinfer_core.engine.model_config import find_config
from deepinfer_core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from deepinfer_core.sampling_params import SamplingParams


class ScriptedModel:
    """Answers every prompt with as many tokens as were asked for; prompts that begin with 13 fail."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def generate(
        self, prompts: Sequence[Mapping[str, Any]], params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        assert not use_tqdm
        return [list(self.stream(prompt, one))[-1] for prompt, one in zip(prompts, params, strict=True)]

    def stream(self, prompt: Mapping[str, Any], params: SamplingParams) -> Iterator[RequestOutput]:
        self.seeds.append(params.seed)
        ids = prompt["prompt_token_ids"]
        if ids[0] == 13:
            yield self._record(ids, 0, error="not finite")
            return
        for number in range(1, params.max_tokens + 1):
            yield self._record(ids, number)

    def _record(self, ids: Sequence[int], number: int, error: str = "") -> RequestOutput:
        completion = CompletionOutput(index=0, text="", token_ids=tuple(range(number)), error=error)
        times = RequestMetrics(
            arrival_time=10.0,
            first_token_time=10.5 if number else None,
            last_token_time=10.5 + 0.25 * (number - 1) if number else None,
            finished_time=12.0,
        )
        return RequestOutput(
            request_id="0", prompt=None, prompt_token_ids=tuple(ids), outputs=(completion,), metrics=times
        )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy(values: list[float]) -> None:
    summary = summarize(values)

    for percent in (50, 90, 95, 99):
        assert summary[f"p{percent}"] == pytest.approx(numpy.percentile(values, percent))
    assert summary["mean"] == pytest.approx(numpy.mean(values))
    assert (summary["min"], summary["max"]) == (min(values), max(values))


def test_random_prompts_are_the_same_for_a_seed_and_hold_no_special_tokens() -> None:
    architecture = find_config("tiny").architecture
    special = {0, 1, 2, architecture.image_token_id}

    prompts = random_prompts(architecture, (3, 500), 5, seed=7)

    assert [len(prompt) for prompt in prompts] == [3, 500, 3, 500, 3]
    assert prompts == random_prompts(architecture, (3, 500), 5, seed=7)
    assert prompts != random_prompts(architecture, (3, 500), 5, seed=8)
    assert not special & {token for prompt in prompts for token in prompt}
    assert max(token for prompt in prompts for token in prompt) < architecture.vocab_size


def test_throughput_takes_times_from_the_engine_and_gives_each_request_a_seed() -> None:
    model = ScriptedModel()

    measured = measure_throughput(model, [[5, 6], [7]], fixed_length(3, temperature=0.0), seed=40)

    assert model.seeds == [40, 41]
    assert measured.requests[0] == RequestTimes(
        num_prompt_tokens=2, num_output_tokens=3, first_token_s=0.5, token_s=0.25, total_s=2.0
    )
    assert measured.rates["input_tokens_per_s"] == pytest.approx(3 / measured.duration_s)
    assert measured.rates["output_tokens_per_s"] == pytest.approx(6 / measured.duration_s)


def test_throughput_takes_the_time_of_every_token_where_the_engine_takes_it_down() -> None:
    class Precise(ScriptedModel):
        def _record(self, ids: Sequence[int], number: int, error: str = "") -> RequestOutput:
            record = super()._record(ids, number, error)
            assert record.metrics is not None
            return replace(record, metrics=replace(record.metrics, inter_token_latencies=(0.25,) * (number - 1)))

    measured = measure_throughput(Precise(), [[5]], fixed_length(3, temperature=0.0), seed=0)

    assert measured.requests[0].gaps_s == (0.25, 0.25)
    assert summaries(measured)["gap_s"]["p95"] == 0.25


def test_latency_takes_the_time_of_every_token() -> None:
    measured = measure_latency(ScriptedModel(), [[5], [6]], fixed_length(4, temperature=0.0), seed=0)

    assert [len(request.gaps_s) for request in measured.requests] == [3, 3]
    for request in measured.requests:
        assert request.total_s >= request.first_token_s + sum(request.gaps_s)
        assert request.token_s == pytest.approx(sum(request.gaps_s) / 3)
    assert set(summaries(measured)) == {"first_token_s", "token_s", "gap_s", "total_s"}


@pytest.mark.parametrize("measure", [measure_throughput, measure_latency])
def test_requests_that_fail_are_counted_and_left_out_of_the_times(measure: Any) -> None:
    measured: Measurement = measure(ScriptedModel(), [[5], [13], [6]], fixed_length(2, temperature=0.0), seed=0)

    assert measured.num_failed == 1
    assert measured.requests[1].error == "not finite"
    assert len(measured.times["first_token_s"]) == 2


def test_one_token_has_no_time_per_token() -> None:
    measured = measure_throughput(ScriptedModel(), [[5]], fixed_length(1, temperature=0.0), seed=0)

    assert measured.requests[0].token_s is None
    assert "token_s" not in summaries(measured)
