"""``deepinfer bench`` on the tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main

SMALL = ["--accelerator", "cpu", "--output-len", "3", "--max-model-len", "128", "--seed", "5"]
QUIET = ["--log-level", "error"]
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def test_throughput_report_has_results_configuration_machine_versions_and_binding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_file, picture = tmp_path / "t.json", tmp_path / "t.png"
    size = ["--num-requests", "3", "--input-len", "8,16", "--max-num-seqs", "2"]

    code = main(
        [*QUIET, "bench", "throughput", "tiny", *SMALL, *size, "--json", str(report_file), "--png", str(picture)]
    )

    report = json.loads(report_file.read_text())
    assert code == 0
    assert [(r["num_prompt_tokens"], r["num_output_tokens"]) for r in report["requests"]] == [(8, 3), (16, 3), (8, 3)]
    results = report["results"]
    assert results["output_tokens_per_s"] == pytest.approx(9 / results["duration_s"])
    assert results["first_token_s"]["p50"] <= results["first_token_s"]["p99"] <= results["total_s"]["max"]
    assert report["configuration"]["input_len"] == [8, 16]
    assert report["configuration"]["settings"]["max_num_seqs"] == {"value": 2, "source": "given"}
    assert report["machine"]["cores"] >= 1
    assert {"python", "torch", "deepinfer-core"} <= report["versions"].keys()
    assert report["binding"]["backend"] == "cpu"
    assert picture.read_bytes().startswith(PNG_MAGIC)
    assert "drafts" not in results
    printed = capsys.readouterr().out
    assert "drafts" not in printed
    assert "throughput of tiny on cpu" in printed
    assert "to the first token (TTFT)" in printed
    assert f"{report['binding']['counts']['native']} native" in printed


def test_latency_report_has_the_time_of_every_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_file = tmp_path / "l.json"
    size = ["--num-requests", "2", "--input-len", "8", "--warmup", "0"]

    code = main([*QUIET, "bench", "latency", "tiny", *SMALL, *size, "--json", str(report_file)])

    report = json.loads(report_file.read_text())
    assert code == 0
    assert [len(request["gaps_s"]) for request in report["requests"]] == [2, 2]
    assert {"first_token_s", "token_s", "gap_s", "total_s"} <= report["results"].keys()
    assert "from token to token (ITL)" in capsys.readouterr().out


def test_requests_can_arrive_at_a_rate_and_be_held_to_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_file, picture = tmp_path / "r.json", tmp_path / "r.png"
    size = ["--num-requests", "4", "--input-len", "8", "--request-rate", "200", "--max-concurrency", "2"]
    goals = ["--goodput", "ttft:600000", "tpot:600000", "e2e:0.001"]
    files = ["--json", str(report_file), "--png", str(picture)]

    code = main([*QUIET, "bench", "throughput", "tiny", *SMALL, *size, *goals, *files])

    report = json.loads(report_file.read_text())
    assert code == 0
    assert {name: report["configuration"][name] for name in ("request_rate", "max_concurrency", "goodput_ms")} == {
        "request_rate": 200.0,
        "max_concurrency": 2,
        "goodput_ms": {"ttft": 600000.0, "tpot": 600000.0, "e2e": 0.001},
    }
    assert [(request["num_output_tokens"], len(request["gaps_s"])) for request in report["requests"]] == [(3, 2)] * 4
    results = report["results"]
    assert (results["num_good"], results["goodput_requests_per_s"]) == (0, 0.0)
    assert all(results["gap_s"][rank] > 0 for rank in ("p50", "p90", "p95", "p99"))
    assert picture.read_bytes().startswith(PNG_MAGIC)
    printed = capsys.readouterr().out
    assert "4 requests, 8 in, 3 out, 200 arrive in a second, at most 2 at once" in printed
    assert "goodput 0.00 requests/s: 0 of 4 within ttft 600000 ms, tpot 600000 ms, e2e 0.001 ms" in printed
    assert "from token to token (ITL)" in printed


@pytest.mark.parametrize("kind", ["throughput", "load", "latency"])
def test_report_says_how_drafts_fared(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_file = tmp_path / "d.json"
    size = ["--num-requests", "2", "--input-len", "8", "--output-len", "8", "--json", str(report_file)]
    drafts = ["--draft-tokens", "2", "--verification", "fixed", "--calibration", "none"]
    load = ["--request-rate", "200"] if kind == "load" else []
    name = "latency" if kind == "latency" else "throughput"

    assert main([*QUIET, "bench", name, "tiny", *SMALL, *size, *drafts, *load]) == 0

    report = json.loads(report_file.read_text())
    found, requests = report["results"]["drafts"], [request["drafts"] for request in report["requests"]]
    assert found["num_blocks"] == sum(request["num_blocks"] for request in requests) > 0
    assert found["verified"] == [sum(numbers) for numbers in zip(*(r["verified"] for r in requests), strict=True)]
    assert found["num_proposed"] >= found["num_verified"] == sum(found["verified"])
    assert found["num_verified"] >= found["num_accepted"] == sum(found["accepted"])
    assert found["acceptance_rate"] == found["num_accepted"] / found["num_verified"]
    assert found["mean_accepted_length"] == 1 + found["num_accepted"] / found["num_blocks"]
    settings = {"method": "dspark", "num_draft_tokens": 2, "verification": "fixed", "acceptance": "auto"}
    assert report["configuration"]["settings"]["speculative_config"] == {
        "value": {**settings, "calibration": "none"},
        "source": "given",
    }
    printed = capsys.readouterr().out
    assert "speculative decoding: method dspark, num_draft_tokens 2, verification fixed, acceptance auto" in printed
    assert f"drafts: {found['num_proposed']} made, {found['num_verified']} verified, " in printed
    assert f"accepted length {found['mean_accepted_length']:.2f}" in printed


def test_a_load_of_latency_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUIET, "bench", "latency", "tiny", *SMALL, "--max-concurrency", "2"]) == 2

    assert "are of throughput; latency sends one request after the other" in capsys.readouterr().err


def test_prompts_can_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [5, 6, 7]}\n{"prompt": "What is 17 + 25?"}\n')

    code = main([*QUIET, "bench", "throughput", "tiny", *SMALL, "--warmup", "0", "--file", str(prompts)])

    assert code == 0
    assert "2 requests, tokens of a file in, 3 out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "/proc/none/x.json"], "--json /proc/none/x.json: it cannot be written"),
        (["--png", "here.png", "--json", "here.png"], "name the same file"),
        (["--file", "none.txt"], "none.txt cannot be read"),
        (["--file", "bad.jsonl"], "line 2: it has no prompt"),
        (["--temperature", "-1"], "temperature=-1.0 must be"),
        (["--input-len", "200"], "200"),
        (["--input-len", "200", "--request-rate", "inf"], "200"),
        (["--goodput", "ttft:soon"], "'ttft:soon': 'soon' must be a number of milliseconds above 0"),
        (["--goodput", "ttft:5", "latency:5"], "'latency:5' is no goal; give KIND:MILLISECONDS"),
    ],
)
def test_what_cannot_be_measured_is_an_error_of_the_user(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt_token_ids": [5]}\n{"max_tokens": 5}\n')

    assert main([*QUIET, "bench", "throughput", "tiny", *SMALL, *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["speed", "tiny"],
        ["latency", "tiny", "--num-requests", "0"],
        ["throughput", "tiny", "--request-rate", "0"],
        ["throughput", "tiny", "--request-rate", "nan"],
        ["throughput", "tiny", "--max-concurrency", "0"],
    ],
)
def test_options_that_do_not_parse_are_errors_of_the_user(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*QUIET, "bench", *arguments])

    assert caught.value.code == 2
    assert "usage: deepinfer bench" in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from deepinfer_core.cli.main import main; "
        f"sys.exit(main(['bench', 'latency', 'tiny', '--png', {str(tmp_path / 'x.png')!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "a picture needs matplotlib, which is not installed: pip install" in done.stderr
    assert "backend" not in done.stderr
