"""What an engine tells about drafts: the page of metrics, records, requests and the log agree with each other."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deepinfer_core import SamplingParams
from deepinfer_core.engine import reporter
from deepinfer_core.engine.draft_watchdog import DraftWatchdog
from deepinfer_core.engine.engine import Engine
from deepinfer_core.outputs import DraftMetrics
from tests.engine.drafting import BLOCK, Asked, finish, heldout_prompts, model, random_lengths, start

BOS = 0


def asked(accelerator: str) -> Asked:
    """Requests that end in several ways, some of them with several completions."""
    numbers = random.Random(3)
    return {
        str(number): (
            prompt,
            SamplingParams(
                temperature=0.8 * (number % 2), n=1 + number % 2, seed=number, max_tokens=numbers.randint(1, 24)
            ),
        )
        for number, prompt in enumerate(heldout_prompts(accelerator, longest=60)[:8])
    }


def counters(engine: Engine) -> dict[tuple[str, str], float]:
    """Counters of the page by name and by the label beside model and engine."""
    page = engine.metrics_page
    assert page is not None
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name not in ("model_name", "engine"))): (
            sample.value
        )
        for family in text_string_to_metric_families(page.decode())
        if family.type == "counter"
        for sample in family.samples
    }


def records(file: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["record"] == kind]


def metrics_of(written: dict[str, Any]) -> DraftMetrics:
    """A record of drafts as it stands in the file."""
    return DraftMetrics(**{name: tuple(value) if isinstance(value, list) else value for name, value in written.items()})


def test_requests_steps_and_the_page_add_up_to_the_log_of_drafts(accelerator: str, tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    engine = start(
        model(accelerator),
        planner=random_lengths(1),
        metrics=True,
        metrics_vllm_names=True,
        stats_file=str(file),
        max_num_seqs=4,
    )

    found = finish(engine, asked(accelerator), staggered=True)

    page = counters(engine)
    engine.close()
    assert engine.draft_log is not None
    total = engine.draft_log.total.metrics()
    assert total.num_accepted > 0
    assert total.num_verified > total.num_accepted
    of_requests = [output.metrics.drafts for output in found.values() if output.metrics is not None]
    assert sum((drafts for drafts in of_requests if drafts is not None), DraftMetrics()) == total
    steps = records(file, "step")
    assert sum((metrics_of(step["drafts"]) for step in steps if step["drafts"]), DraftMetrics()) == total
    assert (
        sum((metrics_of(request["times"]["drafts"]) for request in records(file, "request")), DraftMetrics()) == total
    )
    for prefix in ("deepinfer:spec_decode_", "vllm:spec_decode_"):
        assert page[f"{prefix}num_drafts_total",] == total.num_blocks
        assert page[f"{prefix}num_draft_tokens_total",] == total.num_verified
        assert page[f"{prefix}num_accepted_tokens_total",] == total.num_accepted
        per_place = [page[f"{prefix}num_accepted_tokens_per_pos_total", str(place)] for place in range(BLOCK)]
        assert per_place == list(total.accepted)
    verified = "deepinfer:spec_decode_num_verified_tokens_per_pos_total"
    assert [page[verified, str(place)] for place in range(BLOCK)] == list(total.verified)
    assert page["deepinfer:spec_decode_num_proposed_tokens_total",] == total.num_proposed
    rows = sum(step["num_draft_rows"] for step in steps)
    assert page["deepinfer:step_draft_rows_total",] == rows >= total.num_verified
    assert rows + len([step for step in steps if step["kind"] == "decode"]) <= sum(step["num_rows"] for step in steps)
    for part in ("verify", "draft"):
        seconds = [step[f"{part}_s"] for step in steps if step["kind"] != "idle"]
        assert all(second > 0 for second in seconds)
        assert page["deepinfer:step_device_seconds_total", part] == pytest.approx(sum(seconds))


def test_plain_decoding_tells_nothing_about_drafts(accelerator: str, tmp_path: Path) -> None:
    file = tmp_path / "stats.jsonl"
    engine = start(model(accelerator, 0), metrics=True, stats_file=str(file))

    found = finish(engine, asked(accelerator))

    page = counters(engine)
    engine.close()
    assert {output.metrics.drafts for output in found.values() if output.metrics is not None} == {None}
    assert {(step["drafts"], step["verify_s"], step["num_draft_rows"]) for step in records(file, "step")} == {
        (None, None, 0)
    }
    assert sum(value for name, value in page.items() if "spec_decode" in name[0] or "draft" in name[0]) == 0


def test_drafts_that_never_stand_are_told_without_sinks_and_to_sinks(
    accelerator: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "DraftWatchdog", lambda: DraftWatchdog(num_blocks=12))
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    prompts: Asked = {"a": ([0, 5, 6], params), "b": ([0, 7], params)}
    file = tmp_path / "stats.jsonl"

    for settings in ({}, {"stats_file": str(file)}):
        caplog.clear()
        engine = start(model(accelerator), choose=lambda row, anchor, made: [BOS] * len(made), **settings)
        with caplog.at_level(logging.WARNING, logger="deepinfer"):
            finish(engine, prompts)
        engine.close()
        said = [r.getMessage() for r in caplog.records if r.name == "deepinfer.engine.draft_watchdog"]
        assert len(said) == 1
        assert "blocks was accepted" in said[0]

    events = records(file, "event")
    assert [(event["name"], event["details"]["num_blocks"]) for event in events] == [("no_draft_accepted", 12)]
