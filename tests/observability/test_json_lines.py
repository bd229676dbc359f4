"""The file of records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.json_lines import JsonLinesSink
from deepinfer_core.observability.records import StatsEvent
from deepinfer_core.observability.sink import StatsHub
from deepinfer_core.outputs import DraftMetrics
from tests.observability.sample import INFO, request, step


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_record_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    sink = JsonLinesSink(INFO, file)
    sink.on_step(step(num_waiting={"grammar": 1}, inter_token_s=(0.5, 0.25)))
    sink.on_request(request())
    sink.on_event(StatsEvent(name="tier_disabled", time_s=3.0, details={"tier": "disk"}))
    sink.close()

    engine, one, two, three = lines(file)
    assert engine == {
        "record": "engine",
        "model_name": 'a "model"',
        "engine": 3,
        "block_tokens": 128,
        "num_blocks": 64,
        "num_state_slots": 8,
        "max_num_batched_tokens": 1000,
        "prefix_caching": False,
    }
    assert (one["record"], one["num_waiting"], one["inter_token_s"]) == ("step", {"grammar": 1}, [0.5, 0.25])
    assert two["record"] == "request"
    assert two["times"]["first_token_time"] == 52.0
    assert two["completions"] == [{"finish_reason": "stop", "num_tokens": 5, "decode_s": 2.0}]
    assert three == {"record": "event", "name": "tier_disabled", "time_s": 3.0, "details": {"tier": "disk"}}


def test_drafts_are_in_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    drafts = DraftMetrics(num_blocks=1, num_proposed=3, verified=(1, 1), accepted=(1, 0))
    sink = JsonLinesSink(INFO, file)
    sink.on_step(step(drafts=drafts, verify_s=0.5, draft_s=0.25))
    sink.on_request(request(times=replace(request().times, drafts=drafts)))
    sink.close()

    _, one, two = lines(file)
    written = {"num_blocks": 1, "num_proposed": 3, "verified": [1, 1], "accepted": [1, 0]}
    assert (one["drafts"], one["verify_s"], one["draft_s"]) == (written, 0.5, 0.25)
    assert two["times"]["drafts"] == written


def test_a_request_is_in_the_file_when_it_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    sink = JsonLinesSink(INFO, file, steps=False)

    sink.on_step(step())
    sink.on_request(request())

    assert [line["record"] for line in lines(file)] == ["engine", "request"]
    sink.close()


def test_what_a_file_holds_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    for _ in range(2):
        JsonLinesSink(INFO, file).close()

    assert len(lines(file)) == 2


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        JsonLinesSink(INFO, tmp_path / "none" / "stats.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_noticed_at_once() -> None:
    with pytest.raises(ConfigError, match="No space left"):
        JsonLinesSink(INFO, Path("/dev/full"))


def test_a_file_that_fails_later_is_dropped_by_the_hub(tmp_path: Path) -> None:
    sink = JsonLinesSink(INFO, tmp_path / "stats.jsonl")
    hub = StatsHub((sink,))
    sink._file.close()

    hub.on_request(request())

    assert not hub.is_active
