"""The settings of an engine: what they hand to the scheduler, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import ConfigError

OTHER: dict[str, Any] = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 17,
    "chunked_prefill": True,
    "headroom_blocks": 0,
    "max_prefill_steps_in_a_row": 5,
    "arrivals_per_priority": 7,
    "step_policy": "mixed",
    "max_chunk_tokens": 5,
    "max_prefill_delay_ms": 9,
    "max_num_waiting": 11,
}
"""Settings of the scheduler that are an engine's too; none but chunked_prefill, which chunks need, at its default."""


def test_every_setting_of_the_scheduler_can_be_set_for_an_engine() -> None:
    config = EngineConfig(model="tiny", **OTHER).scheduler(max_model_len=99)

    assert config == SchedulerConfig(max_model_len=99, **OTHER)
    assert {field.name for field in fields(SchedulerConfig)} == {"max_model_len", *OTHER}


def test_an_engine_and_its_scheduler_have_the_same_defaults() -> None:
    engine, scheduler = EngineConfig(model="tiny"), SchedulerConfig()

    assert {name: getattr(engine, name) for name in OTHER} == {name: getattr(scheduler, name) for name in OTHER}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"headroom_blocks": -1}, "headroom_blocks=-1 must be a whole number, 0 or more"),
        ({"max_prefill_steps_in_a_row": 0}, "max_prefill_steps_in_a_row=0 must be a whole number, 1 or more"),
        ({"arrivals_per_priority": 1.5}, "arrivals_per_priority=1.5 must be a whole number, 1 or more"),
        ({"max_model_len": 1}, "max_model_len=1 must be a whole number, 2 or more, or 0"),
        ({"kv_cache_memory_gib": float("nan")}, "kv_cache_memory_gib=nan must be a number of GiB, 0 or more"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EngineConfig(model="tiny", **settings)


def test_all_wrong_settings_are_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model="tiny", numerics="exact", kv_cache_memory_gib=-1.0, headroom_blocks=True)

    assert [problem.split("=")[0] for problem in caught.value.problems] == [
        "numerics",
        "kv_cache_memory_gib",
        "headroom_blocks",
    ]
