"""What the engine takes down becomes records."""

from __future__ import annotations

import pytest

from deepinfer_core.observability.collect import StepCollector, TokenTimes, inter_token_latencies
from deepinfer_core.observability.records import CompletionStats, StepStats


def test_tokens_become_times_of_the_completion_and_of_the_step() -> None:
    collector, first, second = StepCollector(), TokenTimes(), TokenTimes()

    collector.note_tokens(first, 12.0, 1, arrival_s=10.0)
    collector.note_tokens(second, 12.5, 1)
    one = collector.step(time_s=12.5, kind="prefill")
    collector.note_tokens(first, 13.0, 3)
    collector.note_tokens(second, 13.0, 0)
    two = collector.step(time_s=13.0, kind="decode")

    assert one == StepStats(time_s=12.5, kind="prefill", num_generated_tokens=2, first_token_s=(2.0,))
    assert two == StepStats(time_s=13.0, kind="decode", num_generated_tokens=3, inter_token_s=(1.0,))
    assert inter_token_latencies((first, second)) == (1.0,)
    assert first.stats("stop") == CompletionStats(finish_reason="stop", num_tokens=4, decode_s=1.0)
    assert second.stats("abort") == CompletionStats(finish_reason="abort", num_tokens=1, decode_s=0.0)


def test_a_completion_without_a_token_has_no_times() -> None:
    stats = TokenTimes().stats("abort")

    assert stats == CompletionStats(finish_reason="abort", num_tokens=0)
    assert stats.time_per_output_token_s is None


def test_time_per_output_token_is_a_mean_over_the_tokens_after_the_first() -> None:
    assert CompletionStats(finish_reason="stop", num_tokens=5, decode_s=2.0).time_per_output_token_s == 0.5
    assert CompletionStats(finish_reason="stop", num_tokens=1, decode_s=0.0).time_per_output_token_s is None


def test_look_ups_of_a_step_are_added_by_tier() -> None:
    collector = StepCollector()

    collector.note_prefix({"device": 100}, {"device": 64})
    collector.note_prefix({"device": 50, "disk": 30}, {"device": 20, "disk": 10})
    stats = collector.step(time_s=1.0, kind="prefill")

    assert stats.prefix_queries == {"device": 150, "disk": 30}
    assert stats.num_cached_tokens == 94
    assert collector.step(time_s=2.0, kind="decode").prefix_queries == {}


def test_a_field_that_is_taken_down_cannot_be_given() -> None:
    with pytest.raises(TypeError):
        StepCollector().step(time_s=1.0, kind="decode", inter_token_s=())
