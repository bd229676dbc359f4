"""The options of speculative decoding: what they make of ``speculative_config``, and how they meet a settings file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import build_parser, main
from deepinfer_core.cli.model_options import add_drafting_options, given_settings

COMMANDS = (["generate", "tiny", "?"], ["chat", "tiny"], ["bench", "latency", "tiny"], ["describe", "tiny"])


def given(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_drafting_options(parser)
    return given_settings(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--draft-tokens 3", {"num_draft_tokens": 3}),
        ("--draft-tokens auto", {"num_draft_tokens": "auto"}),
        ("--verification fixed", {"verification": "fixed"}),
        ("--acceptance coupled --calibration none", {"acceptance": "coupled", "calibration": "none"}),
        ("--draft-tokens 2 --calibration a/b.json", {"num_draft_tokens": 2, "calibration": "a/b.json"}),
    ],
)
def test_any_option_turns_drafts_on_and_leaves_the_others_open(words: str, fields: dict[str, Any]) -> None:
    assert given(*words.split()) == {"speculative_config": fields}


def test_no_option_says_nothing_and_zero_says_off() -> None:
    assert given() == {}
    assert given("--draft-tokens", "0") == {"speculative_config": None}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_every_command_with_an_engine_has_them(command: list[str]) -> None:
    args = build_parser(command[0]).parse_args([*command, "--draft-tokens", "2", "--verification", "fixed"])

    assert given_settings(args)["speculative_config"] == {"num_draft_tokens": 2, "verification": "fixed"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--draft-tokens 0 --verification fixed --acceptance auto",
            "--draft-tokens 0 makes no drafts, so that --verification fixed and --acceptance auto would say nothing; "
            "leave one or the other out",
        ),
        ("--verification fixd", "verification='fixd' is unknown; choose one of adaptive, fixed; did you mean 'fixed'?"),
        ("--acceptance coupling", "acceptance='coupling' is unknown; choose one of auto, rejection, coupled"),
    ],
)
def test_contradictions_are_errors_in_words(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "tiny", *words.split()]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("number", ["-1", "1.5", "all", ""])
def test_a_number_of_drafts_that_is_none_is_a_usage_error(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["describe", "tiny", f"--draft-tokens={number}"])

    assert caught.value.code == 2
    assert f"argument --draft-tokens: {number!r} is not a whole number from 0 on, or auto" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown", "source"),
    [
        ((), "num_draft_tokens 3, verification fixed", "file settings.toml"),
        (("--draft-tokens", "2"), "num_draft_tokens 2, verification fixed", "given over file settings.toml"),
        (("--draft-tokens", "0"), "None", "given"),
    ],
)
def test_options_win_over_the_table_of_a_settings_file(
    deepinfer, tmp_path: Path, words: tuple[str, ...], shown: str, source: str
) -> None:
    table = '[speculative_config]\nnum_draft_tokens = 3\nverification = "fixed"\n'
    (tmp_path / "settings.toml").write_text(table, encoding="utf-8")

    done = deepinfer("describe", "tiny", *words, environ={"DEEPINFER_CONFIG": "settings.toml"})

    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("speculative_config"))
    assert shown in row
    assert row.endswith(f"  {source}")
