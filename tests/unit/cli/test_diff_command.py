"""``deepinfer diff``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepinfer_core.cli.main import main

GOLDEN = Path(__file__).parents[2] / "golden" / "tiny"


@pytest.fixture
def traces(tmp_path: Path) -> tuple[str, str]:
    """Two traces; the second differs in one logit by a tenth of the largest one, and in what follows."""
    ids = torch.arange(5, dtype=torch.int32)
    logits = torch.linspace(-1.0, 1.0, 15).reshape(5, 3)
    left = {"input/ids": ids, "logits": logits, "greedy": ids.clone(), "mine": ids.clone()}
    right = {"input/ids": ids, "logits": logits.clone(), "greedy": ids + 1}
    right["logits"][3, 1] += 0.1
    files = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for file, tensors in zip(files, (left, right), strict=True):
        save_file(tensors, file, metadata={"numerics": "f32", "accelerator": "cpu", "chunk": "0"})
    return str(files[0]), str(files[1])


def test_equal_traces_exit_with_0(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", traces[0], traces[0]]) == 0

    printed = capsys.readouterr().out
    assert f"A: {traces[0]} (numerics f32, accelerator cpu, chunk 0)" in printed
    assert "equal: 4 tensors within 1e-05 of the largest entry" in printed


def test_the_first_difference_is_named_and_the_exit_code_is_1(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *traces]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "note: only in A: mine"
    assert lines[3] == (
        "first difference: logits at position 3, index 1: 0.428571403 in A, 0.528571427 in B; "
        "the largest difference is 0.1 of the largest entry, allowed 1e-05"
    )
    assert lines[4] == "1 more of 3 tensors differ: greedy"


def test_all_lists_every_tensor(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *traces, "--all"]) == 1

    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert rows == [
        ["input/ids", "0", "differ", "agrees"],
        ["logits", "1.0e-01", "DIFFERS"],
        ["greedy", "5", "differ", "DIFFERS"],
    ]


@pytest.mark.parametrize("options", [["--tolerance", "0.2"], ["--numerics", "bf16", "--tolerance", "0.11"]])
def test_a_wider_tolerance_is_about_numbers_only(
    traces: tuple[str, str], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *traces, *options]) == 1

    assert "first difference: greedy at token 0: 0 in A, 1 in B; 5 such differences" in capsys.readouterr().out


def test_numerics_choose_the_tolerance(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *traces, "--numerics", "bf16"]) == 1

    assert "allowed 0.05" in capsys.readouterr().out


def test_a_variant_of_a_golden_file_is_compared_with_another(capsys: pytest.CaptureFixture[str]) -> None:
    file = GOLDEN / "add.safetensors"

    assert main(["diff", f"{file}::f32", f"{file}::f32"]) == 0
    assert main(["diff", f"{file}::bf16", f"{file}::bf16_a8", "--tolerance", "0"]) == 1
    assert "first difference: " in capsys.readouterr().out


def test_other_prompts_are_not_compared_any_further(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", f"{GOLDEN / 'add.safetensors'}::f32", f"{GOLDEN / 'sort.safetensors'}::f32"]) == 1

    printed = capsys.readouterr().out
    assert "first difference: input/ids at every place: shape (" in printed
    assert printed.rstrip().endswith("the prompts differ, so nothing else can be compared")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"{GOLDEN / 'add.safetensors'}", "holds 3 variants; say which: add.safetensors::bf16,"),
        (
            f"{GOLDEN / 'add.safetensors'}::f23",
            "no variant 'f23'; choose add.safetensors::bf16, add.safetensors::bf16_a8",
        ),
        (f"{GOLDEN / 'texts.json'}", "is not a safetensors file that can be read"),
        (f"{GOLDEN / 'none.safetensors'}", "there is no file"),
    ],
)
def test_a_file_that_is_no_trace_is_an_error_of_the_user(
    traces: tuple[str, str], source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", traces[0], source]) == 2

    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tolerance", "nan"], "--tolerance is nan; give a number, 0 or more"),
        (["--tolerance", "-1"], "--tolerance is -1.0"),
        (["--numerics", "f23"], "numerics 'f23' is unknown"),
    ],
)
def test_wrong_options_are_errors_of_the_user(
    traces: tuple[str, str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *traces, *options]) == 2

    assert message in capsys.readouterr().err


def test_a_variant_of_a_plain_trace_is_an_error_of_the_user(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", f"{traces[0]}::f32", traces[1]]) == 2

    assert "holds one trace and no variant 'f32'" in capsys.readouterr().err


def test_files_without_a_common_tensor_are_an_error_of_the_user(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"weights": torch.zeros(2)}, other)

    assert main(["diff", traces[0], str(other)]) == 2

    assert "have no tensor in common" in capsys.readouterr().err
