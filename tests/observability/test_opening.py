"""From settings to sinks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.json_lines import JsonLinesSink
from deepinfer_core.observability.log_sink import LogSink
from deepinfer_core.observability.opening import metrics_page, open_hub
from deepinfer_core.observability.prometheus import PrometheusSink
from tests.observability.sample import INFO, step
from tests.observability.test_plugins import PLUGINS


def test_nothing_is_asked_for_by_default() -> None:
    hub = open_hub(INFO)

    assert not hub.is_active
    assert metrics_page(hub) is None


def test_every_setting_has_its_sink(tmp_path: Path) -> None:
    hub = open_hub(
        INFO,
        log_stats_interval_s=60.0,
        metrics=True,
        metrics_vllm_names=True,
        stats_file=str(tmp_path / "stats.jsonl"),
        stats_sinks=["statsd"],
        plugins=PLUGINS,
    )
    hub.on_step(step())

    assert [type(sink) for sink in hub.sinks[:3]] == [LogSink, PrometheusSink, JsonLinesSink]
    assert len(hub.sinks) == 4
    assert b"vllm:generation_tokens_total" in (metrics_page(hub) or b"")
    hub.close()
    assert len((tmp_path / "stats.jsonl").read_text().splitlines()) == 2


def test_all_problems_are_told_at_once_and_nothing_stays_open(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_hub(INFO, log_stats_interval_s=60.0, stats_file=str(tmp_path), stats_sinks=["statd"], plugins=PLUGINS)

    assert len(caught.value.problems) == 2
    assert "deepinfer-stats-log" not in {thread.name for thread in threading.enumerate()}


def test_a_wrong_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a number of seconds above 0"):
        open_hub(INFO, log_stats_interval_s=-1.0)
