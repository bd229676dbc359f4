"""Output files are refused before any work when they cannot be written, and nothing is lost by asking."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.cli.output_file import check_outputs
from deepinfer_core.errors import ConfigError


def test_a_new_file_is_allowed_and_not_left_behind(tmp_path: Path) -> None:
    check_outputs({"--json": tmp_path / "new.json", "--png": None})

    assert list(tmp_path.iterdir()) == []


def test_a_file_with_something_in_it_needs_leave_to_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text("old")

    with pytest.raises(ConfigError, match=r"--json .*old\.json: it exists; give --overwrite"):
        check_outputs({"--json": file})
    check_outputs({"--json": file}, overwrite=True)

    assert file.read_text() == "old"


def test_an_empty_file_has_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()

    check_outputs({"--json": tmp_path / "empty.json"})

    assert (tmp_path / "empty.json").exists()


def test_every_problem_is_in_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    places = {
        "--json": tmp_path / "none" / "a.json",
        "--png": tmp_path / "file" / "b.png",
        "--out": Path("/proc/none/c"),
    }

    with pytest.raises(ConfigError) as caught:
        check_outputs(places)

    assert [problem.split()[0] for problem in caught.value.problems] == list(places)
    assert all("cannot be written" in problem for problem in caught.value.problems)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        check_outputs({"--json": tmp_path}, overwrite=True)


def test_two_results_need_two_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--json and --png name the same file"):
        check_outputs({"--json": tmp_path / "a", "--png": tmp_path / "a"})
