"""The scheduler's settings."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import ConfigError


def test_defaults_are_allowed() -> None:
    assert SchedulerConfig().chunked_prefill


def test_every_wrong_value_is_listed_at_once() -> None:
    wrong: dict[str, Any] = {"max_model_len": 1, "max_num_seqs": 0, "headroom_blocks": -1, "chunked_prefill": "yes"}

    with pytest.raises(ConfigError) as raised:
        SchedulerConfig(**wrong)

    assert len(raised.value.problems) == 4
    assert "max_num_seqs=0 must be a whole number, 1 or more" in str(raised.value)


@pytest.mark.parametrize("value", ["8", 8.0, True, None])
def test_number_of_the_wrong_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        SchedulerConfig(max_num_seqs=value)


def test_decode_step_must_have_a_row_for_every_sequence() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=16 is less than max_num_seqs=17.*lower the second"):
        SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=17)
