"""``deepinfer calibrate`` with blocks that no model has drafted, and what it refuses before a model is opened."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core.backend.report import BindingReport
from deepinfer_core.cli import calibrate
from deepinfer_core.cli.calibrate_report import ObservedRun
from deepinfer_core.cli.calibration_prompts import encode_prompt_lines, read_prompt_lines
from deepinfer_core.config import env
from deepinfer_core.engine.draft_log import DraftLog
from deepinfer_core.errors import ConfigError, DeepInferError, RequestError
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.speculation.calibration_file import CALIBRATION_FILE, read_calibration
from tests.unit.speculation.synthetic import SCALES, block, make_blocks

TINY = Path(calibrate.__file__).parents[1] / "models/tiny"
HELDOUT = Path(__file__).parents[2] / "data/eval_heldout.jsonl"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
QUESTION = '{"prompt": "What is 17 + 25?", "answer": "42"}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of which only the config is there, and prompts."""
    (tmp_path / "model").mkdir()
    shutil.copy(TINY / "config.json", tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text(QUESTION * 4)
    return tmp_path


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Blocks stand in for those that a model would make; returns what was asked for."""
    asked: dict[str, Any] = {"blocks": make_blocks(20_000, num_requests=40), "num_failed": 0}

    def observe(args: argparse.Namespace, prompts: list[Any], params: SamplingParams) -> ObservedRun:
        asked.update(prompts=prompts, params=params)
        return ObservedRun(
            model=args.model,
            checkpoint="aa bb",
            num_requests=len(prompts),
            num_failed=asked["num_failed"],
            blocks=asked["blocks"],
            params=params,
            prompts=str(args.prompts),
            settings={"numerics": {"value": "released", "source": "default"}},
            binding=BindingReport(backend="cpu", device="a machine", policy="strict", rows=()),
        )

    monkeypatch.setattr(calibrate, "observe_prompts", observe)
    return asked


def run(folder: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    calibrate.register(parser.add_subparsers())
    words = ["calibrate", str(folder / "model"), "--prompts", str(folder / "prompts.jsonl"), *options]
    args = parser.parse_args(words)
    args.environment = env.read()
    return calibrate.run(args)


def test_the_file_goes_beside_the_model_and_is_read_again(folder: Path, observed: dict[str, Any]) -> None:
    assert run(folder) == 0

    found = read_calibration(folder / "model" / CALIBRATION_FILE, block_size=5, checkpoint="aa bb")
    assert found.temperatures == pytest.approx(SCALES, rel=0.45)
    assert (found.numerics, found.temperature, found.num_blocks, found.num_held_out_blocks) == (
        "released", 1.0, 10_000, 10_000,
    )  # fmt: skip
    assert all(a <= b / 2 for a, b in zip(found.ece_after, found.ece_before, strict=True))
    assert (observed["params"].temperature, observed["params"].max_tokens) == (1.0, 256)


def test_table_has_a_row_for_each_position(
    folder: Path, observed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder)

    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("on cpu (a machine) at temperature 1: 4 requests, up to 256 tokens")
    assert printed[1].startswith("fitted on 10000 blocks of 20 requests; the table is about 10000 blocks of 20 others")
    assert printed[2].split()[:4] == ["drafts", "blocks", "survived", "temperature"]
    assert [line.split("10000")[0].strip() for line in printed[3:8]] == ["1", "1 to 2", "1 to 3", "1 to 4", "1 to 5"]
    assert printed[8].split()[:2] == ["all", "50000"]
    assert printed[9] == f"{folder / 'model' / CALIBRATION_FILE}: 5 temperatures"


def test_report_and_picture(folder: Path, observed: dict[str, Any]) -> None:
    report, picture = folder / "report.json", folder / "picture.png"

    files = ["--output", str(folder / "c.json"), "--json", str(report), "--plot", str(picture)]
    assert run(folder, *files, "--temperature", "0.5", "--num-prompts", "3", "--max-tokens", "9") == 0

    found = json.loads(report.read_text())
    assert found["configuration"]["temperature"] == 0.5
    assert (found["configuration"]["num_requests"], found["configuration"]["max_tokens"]) == (3, 9)
    results = found["results"]
    assert results["ece_after"] < results["ece_before"] / 2
    assert [one["position"] for one in results["after"]] == [1, 2, 3, 4, 5]
    assert sum(one["count"] for one in results["after"][4]["bins"]) == 10_000
    assert {"machine", "versions", "binding", "time"} <= found.keys()
    assert picture.read_bytes().startswith(PNG_MAGIC)
    assert not (folder / "model" / CALIBRATION_FILE).exists()


def test_doubts_are_said(folder: Path, observed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    observed["blocks"] = [block(*[3.0] * 5, accepted=5, request=str(n)) for n in range(6)]

    run(folder)

    assert "note: up to draft 1, 2, 3, 4, 5 all blocks survived, or none did" in capsys.readouterr().out


def test_too_few_blocks_to_tell_anything_are_said(
    folder: Path, observed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A confidence that is right, and blocks of which no more could be known."""
    observed["blocks"] = make_blocks(60, (1.0,) * 5, num_requests=20)

    run(folder)

    assert "the error before is no larger than chance makes it with so few blocks" in capsys.readouterr().out


def test_growth_of_the_error_is_said(
    folder: Path, observed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Even requests accept everything, odd ones nothing: what is fitted on one half is wrong for the other."""
    observed["blocks"] = [block(*[1.0] * 5, accepted=5 * (n % 2 == 0), request=str(n)) for n in range(60)]

    run(folder)

    assert "note: up to draft 1, 2, 3, 4, 5 the error has grown on held-out requests" in capsys.readouterr().out


def test_failed_requests_are_counted_and_give_exit_code_1(
    folder: Path, observed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    observed["num_failed"] = 2

    assert run(folder) == 1
    assert "2 requests failed" in capsys.readouterr().out


def test_a_run_without_blocks_writes_nothing(folder: Path, observed: dict[str, Any]) -> None:
    observed["blocks"] = []

    with pytest.raises(ConfigError, match="no block of drafts was verified"):
        run(folder)
    assert not (folder / "model" / CALIBRATION_FILE).exists()


def test_a_calibration_is_replaced_only_when_that_is_asked_for(folder: Path, observed: dict[str, Any]) -> None:
    file = folder / "model" / CALIBRATION_FILE
    file.write_text("old")

    with pytest.raises(ConfigError, match=r"--output .*dspark_calibration\.json: it exists; give --overwrite"):
        run(folder)
    assert file.read_text() == "old"
    assert run(folder, "--overwrite") == 0
    assert read_calibration(file, block_size=5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"--prompts: .*prompts\.jsonl cannot be read: No such file or directory"),
        (b"", r"prompts\.jsonl has no prompts; write an object on each line"),
        (b"\n  \n", "has no prompts"),
        (b"\xff\xff", "is not UTF-8: .* at byte 0"),
        (b"What is 17 + 25?", "line 1: it is not JSON"),
        (
            b'{"prompt": "a"}\n\n["b"]',
            "line 3: it has no prompt; give an object with one of prompt, prompt_token_ids, m",
        ),
        (b'{"prompt": "a", "messages": []}', "it has prompt and messages; give an object with one of"),
        (b'{"prompt": 5}', "prompt must be a text"),
        (b"[]\n" * 30, "20 more lines are wrong"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(folder: Path, content: bytes | None, message: str) -> None:
    file = folder / "prompts.jsonl"
    file.unlink() if content is None else file.write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        run(folder)


def test_a_model_without_drafts_is_refused(folder: Path) -> None:
    config = json.loads((folder / "model/config.json").read_text())
    text = config["text_config"]
    text["num_nextn_predict_layers"] = 0
    text["compress_ratios"] = text["compress_ratios"][: text["num_hidden_layers"]]
    (folder / "model/config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=r"has no draft module .*name a model that has one"):
        run(folder)


def test_a_model_that_is_not_there_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "model")

    with pytest.raises(DeepInferError, match="model"):
        run(folder)


@pytest.mark.parametrize("option", ["--output", "--json", "--plot"])
def test_a_place_that_cannot_be_written_is_refused(folder: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} .*it cannot be written"):
        run(folder, option, str(folder / "none/file"))


def test_a_temperature_below_zero_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="temperature=-1"):
        run(folder, "--temperature", "-1")


def test_a_picture_without_matplotlib_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"--plot: a picture needs matplotlib.*pip install 'deepinfer-core\[plot\]'"):
        run(folder, "--plot", str(folder / "p.png"))


@pytest.mark.parametrize("option", ["--num-prompts", "--max-tokens"])
def test_numbers_start_at_one(folder: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(folder, option, "0")
    assert "is not a whole number from 1 on" in capsys.readouterr().err


def test_held_out_tasks_can_be_read(folder: Path) -> None:
    lines = read_prompt_lines(HELDOUT, limit=3)

    assert [number for number, _ in lines] == [1, 2, 3]
    assert lines[0][1]["task"] == "add"
    assert len(read_prompt_lines(HELDOUT)) == 216


class Encoder:
    """Says how it was asked."""

    def encode_prompt(self, prompt: Any) -> SimpleNamespace:
        return SimpleNamespace(token_ids=["exact", prompt.get("prompt", prompt.get("prompt_token_ids"))])

    def encode_chat(self, messages: Any, options: Any) -> SimpleNamespace:
        assert options == {}
        if not messages:
            raise RequestError("there are no messages")
        return SimpleNamespace(token_ids=["chat", messages[0]["content"]])


@pytest.mark.parametrize(("is_raw", "kind"), [(True, "exact"), (False, "chat")])
def test_texts_are_questions_or_exact(is_raw: bool, kind: str) -> None:
    lines = [
        (1, {"prompt": "a"}), (2, {"prompt_token_ids": [5]}), (4, {"messages": [{"role": "user", "content": "b"}]}),
    ]  # fmt: skip

    assert encode_prompt_lines(lines, Encoder(), is_raw=is_raw) == [[kind, "a"], ["exact", [5]], ["chat", "b"]]


def test_prompts_that_the_model_does_not_take_are_named_by_their_lines() -> None:
    with pytest.raises(ConfigError, match="--prompts: line 7: there are no messages"):
        encode_prompt_lines([(3, {"prompt": "a"}), (7, {"messages": []})], Encoder(), is_raw=False)


class FakeEngine:
    """Two steps with a block of every request each, in an order of its own; request 1 fails."""

    def __init__(self) -> None:
        self.draft_log = DraftLog()
        self.seeds: dict[str, int | None] = {}

    def add(self, request_id: str, prompt_token_ids: Any, params: SamplingParams) -> None:
        assert prompt_token_ids == [1]
        self.seeds[request_id] = params.seed

    def run(self) -> Iterator[SimpleNamespace]:
        for step in range(2):
            for request_id in reversed(self.seeds):
                self.draft_log.observe(block(float(step), accepted=1, request=request_id))
        for request_id in self.seeds:
            reason = "error" if request_id == "1" else "stop"
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=(1, 2), finish_reason=reason)])


def test_blocks_are_collected_in_the_order_of_requests_and_steps() -> None:
    engine = FakeEngine()

    blocks, num_failed = calibrate.collect(engine, [[1]] * 12, SamplingParams(temperature=1, seed=7))

    assert [(b.request_id, b.confidence_logits) for b in blocks] == [
        (str(n), (float(step),)) for n in range(12) for step in range(2)
    ]
    assert num_failed == 1
    assert engine.seeds == {str(n): 7 + n for n in range(12)}
    assert engine.draft_log.observe is None


def test_examples_of_the_help_parse() -> None:
    parser = argparse.ArgumentParser()
    calibrate.register(parser.add_subparsers())
    examples = calibrate._EPILOG.split("examples:\n")[1].split("\n\n")[0].splitlines()

    assert len(examples) >= 3
    for example in examples:
        assert parser.parse_args(example.split()[1:]).prompts == Path("prompts.jsonl")
