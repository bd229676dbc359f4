"""The frame of the command line: finding a command, exit codes, and staying cheap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import deepinfer_core
from deepinfer_core.cli.main import COMMANDS, build_parser, main

HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "huggingface_hub")


def heavy_modules_after(code: str) -> list[str]:
    """Which heavy modules a fresh interpreter has imported after some code."""
    script = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[-2].split()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"deepinfer {deepinfer_core.__version__}\n"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_version_and_help_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"from deepinfer_core.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass"

    assert heavy_modules_after(code) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_command_import_nothing_heavy(command: str) -> None:
    code = f"from deepinfer_core.cli.main import build_parser\nbuild_parser({command!r})"

    assert heavy_modules_after(code) == []


def test_help_lists_every_command() -> None:
    text = build_parser().format_help()

    assert all(f"\n    {command} " in text for command in COMMANDS)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])

    assert caught.value.code == 2
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err


def test_error_of_the_user_is_a_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["backends", "abacus"])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("deepinfer: error: no backend named 'abacus' is installed")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_misspelt_setting_in_the_environment_stops_the_command(deepinfer) -> None:
    done = deepinfer("backends", environ={"DEEPINFER_ACCELERATR": "cpu"})

    assert done.returncode == 2
    assert "did you mean 'DEEPINFER_ACCELERATOR'?" in done.stderr


def test_version_is_told_even_in_a_wrong_environment(deepinfer) -> None:
    assert deepinfer("--version", environ={"DEEPINFER_ACCELERATR": "cpu"}).returncode == 0


def test_interrupt_is_exit_code_130_without_a_traceback(offer, deepinfer) -> None:
    offer(
        "interrupting",
        "interrupting",
        """
        class Info:
            name, interface_version, priority, install_hint = "interrupting", 1, 0, ""
            def probe(self):
                raise KeyboardInterrupt
            prepare_process = load = None
        """,
    )

    done = deepinfer("backends")

    assert (done.returncode, done.stderr) == (130, "deepinfer: interrupted\n")


def test_reader_that_has_gone_is_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-c", "import sys; from deepinfer_core.cli.main import main; sys.exit(main())", "backends"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, "")
