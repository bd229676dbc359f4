"""``deepinfer fit``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main

SMALL = ["--context", "8192"]


def test_eight_devices_hold_the_released_model_and_no_network_is_needed(deepinfer) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}

    done = deepinfer("fit", "released", "--devices", "8", "--accelerator", "h200", environ=offline)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = " ".join(done.stdout.split())
    for part in (
        "routed experts 268.9 GiB 33.6 GiB 48 of 384 experts of each layer",
        "890 bytes for a token",
        "fits; smallest number: 3",
        "fits; smallest number: 5",
        "183.1 GiB of host memory",
        "assumed: weights in their stored formats; expert parallelism over all devices",
    ):
        assert part in printed


def test_the_hub_id_of_the_released_model_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for model in ("released", "deepseek-ai/DeepSeek-V4.1-Flash"):
        main(["fit", model, "--devices", "4", "--accelerator", "h200"])
        reports.append(capsys.readouterr().out.split("\n", 1)[1])

    assert reports[0] == reports[1]


def test_one_device_is_not_enough_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "released", "--devices", "1", "--accelerator", "h200", *SMALL]) == 1

    printed = capsys.readouterr().out
    assert "164.9 GiB short" in printed
    assert "does not fit; smallest number: 3" in printed


def test_without_an_accelerator_all_known_ones_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "released", "--devices", "8", *SMALL]) == 0

    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "smallest number" in line]
    assert {"h100", "h200", "b200", "ascend-950dt"} <= set(rows)
    assert all(rows.count(name) == 2 for name in rows)


def test_memory_can_be_given_for_an_accelerator_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", "released", "--devices", "4", "--accelerator", "mine", "--memory-gib", "200"]

    assert main([*arguments, *SMALL, "--engram", "device", "--no-draft"]) == 0

    printed = capsys.readouterr().out
    assert "  mine         200.0 GiB  device" in printed
    assert "draft" not in printed
    assert "host" not in printed.split("\n\n")[3]


def test_report_for_programs_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"

    main(
        ["fit", "released", "--devices", "8", "--accelerator", "h200", "--context", "8192,131072", "--json", str(file)]
    )

    report = json.loads(file.read_text())
    host, device = report["accelerators"]
    assert (report["devices"], report["memory_share"]) == (8, 0.9)
    assert sum(group["total_bytes"] for group in report["weights"]) == report["weights_total_bytes"]
    assert report["cache"]["bytes_per_token"] == 890
    assert (host["engram"], device["engram"]) == ("host", "device")
    assert host["sequences"]["131072"] == 8 * host["sequences_per_device"]["131072"] > 0
    assert f"{host['sequences_per_device']['131072']:,} (" in capsys.readouterr().out


def test_contexts_of_a_small_model_stop_at_its_longest_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "tiny", "--devices", "1", "--memory-gib", "1"]) == 0

    contexts = capsys.readouterr().out.split("one sequence\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in contexts.splitlines()] == ["8,192", "16,384"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accelerator", "h2000"], "did you mean 'h200'"),
        (["--memory-gib", "0"], "--memory-gib 0 must be a number of GiB above 0"),
        (["--memory-gib", "nan"], "--memory-gib nan must be"),
        (["--memory-gib", "10", "--memory-share", "1.5"], "--memory-share 1.5 must be above 0 and at most 1"),
        (
            ["--memory-gib", "10", "--context", "2000000"],
            "--context 2000000: the model's sequences have at most 1048576",
        ),
        (["--json", "/proc/none/plan.json"], "--json /proc/none/plan.json: it cannot be written"),
    ],
)
def test_what_cannot_be_planned_is_an_error_of_the_user(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "released", "--devices", "8", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments", [["--devices", "0"], ["--devices", "x"], ["--devices", "1", "--context", "8k"], []]
)
def test_options_that_do_not_parse_are_errors_of_the_user(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fit", "released", *arguments])

    assert caught.value.code == 2
    assert "usage: deepinfer fit" in capsys.readouterr().err


def test_planning_imports_no_tensor_library() -> None:
    code = (
        "import sys; from deepinfer_core.cli.main import main; "
        "main(['fit', 'released', '--devices', '8', '--accelerator', 'h200']); "
        "print(*(name for name in ('torch', 'numpy', 'huggingface_hub') if name in sys.modules), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.split() == []
