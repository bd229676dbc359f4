"""``deepinfer check``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main

MINI = Path(__file__).parents[2] / "golden" / "mini_b" / "checkpoint"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A checkpoint whose config has two problems and whose second shard is absent."""
    folder = tmp_path / "broken"
    shutil.copytree(MINI, folder, ignore=shutil.ignore_patterns("model-00002*"), copy_function=shutil.copyfile)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(scale_fmt="float", weight_block_size=[128, 128])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_clean_checkpoint_exits_with_0_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny"]) == 0

    printed = capsys.readouterr().out
    assert "layers: 8 (1 of ratio 0, 4 of ratio 1, 3 of ratio 2)" in printed
    assert "tensors: 860 of 860 expected in 3 shards, 15.4 MiB" in printed
    assert printed.rstrip().endswith("no problems")


def test_broken_checkpoint_exits_with_1_and_lists_every_problem(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(broken)]) == 1

    printed = capsys.readouterr().out
    assert "3 problems:" in printed
    for part in ("scale_fmt is 'float'", "weight_block_size is [128, 128]", "model-00002-of-00002.safetensors"):
        assert part in printed


def test_report_is_written_as_json(broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    code = main(["check", str(broken), "--json", str(file)])

    report = json.loads(file.read_text())
    assert code == 1
    assert report["clean"] is False
    assert len(report["problems"]) == 3


def test_folder_without_config_is_a_problem_like_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 1

    printed = capsys.readouterr().out
    assert "the folder has no config.json" in printed
    assert "neither model.safetensors.index.json nor model.safetensors" in printed


def test_unknown_model_is_an_error_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tinny"]) == 2

    assert "did you mean 'tiny'" in capsys.readouterr().err


def test_report_that_cannot_be_written_is_an_error_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "tiny", "--json", str(tmp_path / "none" / "report.json")]) == 2

    assert "cannot write" in capsys.readouterr().err
