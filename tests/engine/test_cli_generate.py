"""``deepinfer generate`` on the tiny model: one prompt, and files of prompts with lines that are wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import main

COMMAND = [sys.executable, "-c", "import sys; from deepinfer_core.cli.main import main; sys.exit(main())"]
QUIET = ["--log-level", "error"]
TINY = ["tiny", "--accelerator", "cpu", "--max-model-len", "256"]
Generate = Callable[..., int]


@pytest.fixture
def generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generate:
    """Run ``deepinfer generate tiny ...`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        return main([*QUIET, "generate", *TINY, *arguments])

    return run


def write_lines(file: Path, *lines: dict[str, Any] | str) -> Path:
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "arguments",
    [
        ["What is 17 + 25?", "--max-tokens", "8"],
        ["--max-tokens", "8", "What is 17 + 25?"],
        ["--raw", "<｜begin▁of▁sentence｜><｜User｜>What is 17 + 25?<｜Assistant｜></think>"],
    ],
)
def test_only_the_completion_is_printed(
    generate: Generate, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert generate(*arguments) == 0

    assert capsys.readouterr().out == "42\n"


def test_a_file_of_texts_gives_results_in_the_order_of_the_prompts(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "p.txt", "Copy this: hat ring ring", "What is 17 + 25?", "", "Compute 60 + 15.")

    assert generate("--file", "p.txt", "--out", "r.jsonl") == 0

    captured = capsys.readouterr()
    assert [(result["line"], result["text"]) for result in read(tmp_path / "r.jsonl")] == [
        (1, "hat ring ring"),
        (2, "42"),
        (4, "75"),
    ]
    assert captured.out == ""
    assert captured.err.startswith("r.jsonl: 3 of 3 lines done; 10 tokens in ")
    assert "\r" not in captured.err  # no bar where nobody watches


def test_lines_that_are_wrong_fail_alone(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(
        tmp_path / "p.jsonl",
        {"prompt": "What is 17 + 25?", "id": "first"},
        "{not json",
        {"prompt": "x", "id": "zero", "max_tokens": 0},
        {"prompt_token_ids": [5, 1280], "id": "unknown token"},
        {"prompt_token_ids": [], "id": "empty"},
        {"prompt_token_ids": [5] * 256, "id": "no room for a token"},
        {"prompt_token_ids": [5] * 255, "id": "at the limit", "max_tokens": 9, "ignore_eos": True},
        {"prompt_token_ids": "5", "id": "no list"},
        {"messages": [{"role": "nobody", "content": "x"}], "id": "no such role"},
        {"prompt": "x", "temperature": float("nan"), "id": "not finite"},
        {"prompt": "x", "n": 2, "temperature": 0, "id": "contradictory"},
        {"prompt": "x", "stop": [""], "id": "empty stop"},
        {"prompt": "Compute 60 + 15.", "stop": [f"stop {n}" for n in range(10_000)], "id": "many stops"},
        {"messages": [{"role": "user", "content": "Add the numbers: 86, 9"}], "reasoning_effort": "high", "id": "last"},
    )

    assert generate("--file", "p.jsonl", "--out", "r.jsonl", "--max-tokens", "24") == 1

    results = {result["id"]: result for result in read(tmp_path / "r.jsonl")}
    texts = {name: result["text"] for name, result in results.items() if "error" not in result}
    errors = {name: result["error"] for name, result in results.items() if "error" in result}
    assert texts.keys() == {"first", "at the limit", "many stops", "last"}
    assert (texts["first"], texts["many stops"]) == ("42", "75")
    assert texts["last"] == "86 + 9 = 95.</think>95"
    assert (results["at the limit"]["finish_reason"], len(results["at the limit"]["token_ids"])) == ("length", 1)
    assert "not JSON" in errors[2]
    assert "1280" in errors["unknown token"]
    assert "256" in errors["no room for a token"]
    assert [result["line"] for result in read(tmp_path / "r.jsonl")] == list(range(1, 15))
    assert "4 of 14 lines done, 10 failed" in capsys.readouterr().err


def test_a_prompt_that_no_step_can_hold_fails_alone(generate: Generate, tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", {"prompt_token_ids": [5] * 17}, {"prompt_token_ids": [5] * 16, "max_tokens": 2})
    limits = ["--max-num-batched-tokens", "16", "--no-chunked-prefill", "--max-num-seqs", "4"]

    assert generate("--file", "p.jsonl", "--out", "r.jsonl", *limits) == 1

    refused, served = read(tmp_path / "r.jsonl")
    assert "16" in refused["error"]
    assert len(served["token_ids"]) == 2


def test_results_that_exist_are_kept_unless_they_may_be_replaced(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "p.txt", "What is 17 + 25?")
    (tmp_path / "r.jsonl").write_text("mine\n")

    assert generate("--file", "p.txt", "--out", "r.jsonl") == 2
    assert "r.jsonl: it exists; give --overwrite" in capsys.readouterr().err
    assert generate("--file", "p.txt", "--out", "r.jsonl", "--resume") == 2
    assert "so this is no file of results" in capsys.readouterr().err
    assert (tmp_path / "r.jsonl").read_text() == "mine\n"

    assert generate("--file", "p.txt", "--out", "r.jsonl", "--overwrite") == 0
    assert [result["text"] for result in read(tmp_path / "r.jsonl")] == ["42"]


def test_resuming_does_only_what_is_missing(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "p.txt", "What is 17 + 25?", "Copy this: hat ring ring", "Compute 60 + 15.")
    write_lines(
        tmp_path / "r.jsonl", {"id": 3, "line": 3, "text": "seventy-five"}, {"id": 1, "line": 1, "error": "no memory"}
    )

    assert generate("--file", "p.txt", "--out", "r.jsonl", "--resume") == 0

    assert [result["text"] for result in read(tmp_path / "r.jsonl")] == ["42", "hat ring ring", "seventy-five"]
    assert "2 of 2 lines done, 1 were there before" in capsys.readouterr().err


def test_lines_draw_from_seeds_of_their_own_and_repeat(generate: Generate, tmp_path: Path) -> None:
    write_lines(tmp_path / "p.txt", *["Tell a story about a zebra named Anton."] * 3)
    options = ["--temperature", "20", "--seed", "1", "--max-tokens", "6", "--file", "p.txt"]

    generate(*options, "--out", "a.jsonl")
    generate(*options, "--out", "b.jsonl", "--max-num-seqs", "2")

    assert read(tmp_path / "a.jsonl") == read(tmp_path / "b.jsonl")
    assert len({tuple(result["token_ids"]) for result in read(tmp_path / "a.jsonl")}) > 1


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "p.jsonl",
        {"prompt": "Tell a story about a zebra named Anton.", "max_tokens": 200, "ignore_eos": True},
        {"prompt": "What is 17 + 25?"},
    )
    command = [*COMMAND, *QUIET, "generate", *TINY, "--file", "p.jsonl", "--out", "r.jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        end = time.monotonic() + 60
        while not ((tmp_path / "r.jsonl").is_file() and (tmp_path / "r.jsonl").stat().st_size):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        code, said = process.wait(timeout=60), process.stderr.read()

    assert code == 130
    assert [(result["line"], result["text"]) for result in read(tmp_path / "r.jsonl")] == [(2, "42")]
    assert "1 lines were not finished; --resume goes on from here\ndeepinfer: interrupted\n" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "p.txt"], "--file and --out belong together"),
        (["x", "--out", "r"], "--file and --out belong together"),
        (["x", "--file", "p.txt", "--out", "r"], "give either PROMPT or --file"),
        (["x", "--resume"], "--overwrite and --resume are about the file of --out"),
        (["--file", "p.txt", "--out", "r", "--resume", "--overwrite"], "give one of them"),
        (["x", "--raw", "--reasoning-effort", "low"], "cannot change a prompt that is sent as it is"),
        (["--file", "none.txt", "--out", "r"], "none.txt cannot be read"),
        (["--file", "p.txt", "--out", "none/r"], "--out none/r: it cannot be written (No such file or directory)"),
        (["--file", "p.txt", "--out", "/proc/none"], "--out /proc/none: it cannot be written"),
        (["--file", "p.txt", "--out", "p.txt", "--overwrite"], "--out p.txt is the file of the prompts"),
        (["--file", "empty.txt", "--out", "r"], "empty.txt has no prompts"),
        (["--file", "p.txt", "--out", "r", "--max-tokens", "0"], "max_tokens=0 must be an integer from 1"),
        (["x", "--max-tokens", "0"], "max_tokens=0 must be an integer from 1"),
        (["x", "--temperature", "nan", "--top-p", "2"], "temperature=nan must be a finite number"),
        (["x", "--stop", ""], "none of them empty"),
        (["x", "--max-num-seqs", "0"], "max_num_seqs=0"),
        (["x", "--kv-cache-memory-gib", "inf"], "kv_cache_memory_gib=inf"),
        (["x" * 2000], "256"),
    ],
)
def test_what_cannot_be_done_is_an_error_of_the_user(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_lines(tmp_path / "p.txt", "What is 17 + 25?")
    (tmp_path / "empty.txt").write_text("\n\n")

    assert generate(*arguments) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "p.txt"]


def test_a_prompt_is_required(generate: Generate, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        generate("--max-tokens", "3")

    assert caught.value.code == 2
    assert "the following arguments are required: PROMPT" in capsys.readouterr().err
