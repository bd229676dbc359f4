"""``deepinfer describe``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main


def test_every_setting_says_where_it_comes_from(deepinfer, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('max_num_seqs = 64\nnumerics = "bf16"\n')
    environ = {"DEEPINFER_CONFIG": "settings.toml", "DEEPINFER_FALLBACK": "decompose"}

    done = deepinfer("describe", "tiny", "--numerics", "f32", "--kv-cache-memory-gib", "0.5", environ=environ)

    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.split("\nsetting ")[1].splitlines()[1:]}
    assert rows["model"] == ["tiny", "given"]
    assert rows["numerics"] == ["f32", "given"]
    assert rows["kv_cache_memory_gib"] == ["0.5", "given"]
    assert rows["max_num_seqs"] == ["64", "file settings.toml"]
    assert rows["fallback"] == ["decompose", "environment"]
    assert rows["max_model_len"] == ["0", "default"]


def test_released_model_is_described_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "released"]) == 0

    printed = capsys.readouterr().out
    assert "layers: 40 (2 of ratio 0, 20 of ratio 1, 18 of ratio 2)" in printed
    assert "experts: 384 of width 2304, 6 per token, 1 shared" in printed
    assert "caches: 890 bytes for a token" in printed
    assert "window        0-39" in printed
    assert "accelerator auto: backend " in printed


def test_longest_sequence_is_the_one_that_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", "tiny", "--max-model-len", "1000"])

    assert "for a sequence of 1,000 tokens" in capsys.readouterr().out


def test_report_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "described.json"

    assert main(["describe", "tiny", "--accelerator", "cpu", "--bind", "--json", str(file)]) == 0

    report = json.loads(file.read_text())
    assert report["settings"]["accelerator"] == {"value": "cpu", "source": "given"}
    assert report["settings"]["fallback"] == {"value": "allow_reference", "source": "default"}
    assert report["architecture"]["attention"]["num_heads"] == 8
    assert report["caches"]["bytes_per_token"] == 280
    assert report["accelerator"]["backend"] == "cpu"
    assert {state["name"] for state in report["accelerator"]["backends"]} >= {"cpu", "null"}
    assert report["binding"]["counts"].keys() == {"native", "decomposed", "reference"}
    assert "norm.rms_norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["released", "--bind"], "is a config without weights, so it cannot be bound"),
        (["tinny"], "did you mean 'tiny'"),
        (["tiny", "--numerics", "f23"], "did you mean 'f32'"),
        (["tiny", "--max-num-seqs", "0", "--kv-cache-memory-gib", "-1"], "max_num_seqs=0"),
        (["tiny", "--accelerator", "cpux"], "no backend named 'cpux'"),
        (["tiny", "--json", "/proc/none/x.json"], "cannot be written"),
    ],
)
def test_what_a_run_would_refuse_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
