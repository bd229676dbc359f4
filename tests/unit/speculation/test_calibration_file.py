"""The file of temperatures: what was written is read, and what is wrong is said in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.speculation.calibration_file import (
    CALIBRATION_FILE,
    Calibration,
    find_calibration,
    read_calibration,
    write_calibration,
)

GIVEN = Calibration(
    temperatures=(1.5, 0.8, 1.0),
    block_size=3,
    checkpoint="aa bb",
    model="tiny",
    numerics="released",
    temperature=1.0,
    num_blocks=400,
    num_held_out_blocks=390,
    ece_before=(0.1, 0.2, 0.3),
    ece_after=(0.01, 0.02, 0.03),
    auc_before=(0.9, 0.8, None),
    auc_after=(0.9, 0.81, None),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_calibration(tmp_path / CALIBRATION_FILE, GIVEN)
    return tmp_path / CALIBRATION_FILE


def changed(file: Path, **values: Any) -> Path:
    """The file with other values; ``...`` takes a field out."""
    fields = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    return file


def test_what_was_written_is_read(file: Path) -> None:
    assert read_calibration(file, block_size=3, checkpoint="aa bb") == GIVEN
    assert read_calibration(file, block_size=3) == GIVEN


def test_the_file_says_its_version_and_ends_with_a_line(file: Path) -> None:
    text = file.read_text()

    assert json.loads(text)["version"] == 1
    assert text.endswith("}\n")


def test_writing_again_replaces(file: Path) -> None:
    other = replace(GIVEN, temperatures=(1.0, 1.0, 2.0))
    write_calibration(file, other)

    assert read_calibration(file, block_size=3) == other


def test_it_is_found_beside_the_model(file: Path) -> None:
    assert find_calibration(file.parent) == file
    file.unlink()
    assert find_calibration(file.parent) is None
    file.mkdir()
    assert find_calibration(file.parent) is None


def test_whole_numbers_are_temperatures_too(file: Path) -> None:
    assert read_calibration(changed(file, temperatures=[1, 2, 3]), block_size=3).temperatures == (1, 2, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 2}, "version is 2, and this program reads version 1; run 'deepinfer calibrate' again"),
        ({"version": ...}, "version is None"),
        ({"temperatures": ...}, "temperatures is missing"),
        ({"temperatures": ..., "temperature_s": 1}, "temperatures is missing; did you mean 'temperature_s'"),
        ({"bins": 15}, "bins is no field of a calibration"),
        ({"temperatures": [1.0, 1.0]}, "it has 2 temperatures for blocks of 3 drafts; run 'deepinfer calibrate' again"),
        ({"temperatures": [1.0, 0.0, 1.0]}, r"must be a list of finite numbers above 0, one for each draft"),
        ({"temperatures": [1.0, -2.0, 1.0]}, "finite numbers above 0"),
        ({"temperatures": [1.0, float("nan"), 1.0]}, "temperatures is .*nan.*finite numbers above 0"),
        ({"temperatures": [1.0, float("inf"), 1.0]}, "finite numbers above 0"),
        ({"temperatures": [1.0, True, 1.0]}, "finite numbers above 0"),
        ({"temperatures": [1.0, "1", 1.0]}, "finite numbers above 0"),
        ({"temperatures": []}, "finite numbers above 0"),
        ({"temperatures": 1.0}, "temperatures is 1.0; it must be a list"),
        ({"block_size": 0}, "block_size is 0; it must be a whole number, 1 or more"),
        ({"block_size": 3.0}, "block_size is 3.0"),
        ({"checkpoint": None}, "checkpoint is None; it must be a text"),
        ({"temperature": -1}, "temperature is -1; it must be a finite number, 0 or more"),
        ({"num_blocks": True}, "num_blocks is True; it must be a whole number, 0 or more"),
        ({"ece_after": [0.1, None]}, "ece_after is .* it must be a list of numbers"),
        ({"auc_after": "high"}, "auc_after is 'high'; it must be a list of numbers or nulls"),
    ],
)
def test_a_file_with_something_wrong_is_refused(file: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_calibration(changed(file, **values), block_size=3)

    assert str(caught.value).startswith(f"calibration {file}: ")


def test_every_problem_is_listed(file: Path) -> None:
    changed(file, temperatures=[0.0], model=5, ece_before=..., extra=1)

    with pytest.raises(ConfigError) as caught:
        read_calibration(file, block_size=3)

    assert [problem.split()[0] for problem in caught.value.problems] == ["ece_before", "extra", "temperatures", "model"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{not json", r"it is not JSON \(.*\); run 'deepinfer calibrate' again"),
        (b"\xff\xfe", "it is not JSON"),
        (b"", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1.0, 1.0, 1.0]", "it is JSON but no object"),
    ],
)
def test_a_file_that_is_something_else_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        read_calibration(file, block_size=3)


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: there is no such file; make it with 'deepinfer calibrate'"):
        read_calibration(tmp_path / "none.json", block_size=3)
    with pytest.raises(ConfigError, match="it cannot be read: Is a directory"):
        read_calibration(tmp_path, block_size=3)


def test_a_calibration_of_another_block_size_names_both(file: Path) -> None:
    with pytest.raises(ConfigError, match="it is for blocks of 3 drafts, and the model's have 5; give the calibration"):
        read_calibration(file, block_size=5)


def test_a_calibration_of_another_checkpoint_is_refused_with_what_to_do(file: Path) -> None:
    message = (
        r"made for another checkpoint \(tiny: aa bb\).*opened \(cc dd\); run 'deepinfer calibrate' on this one, or"
    )

    with pytest.raises(ConfigError, match=message):
        read_calibration(file, block_size=3, checkpoint="cc dd")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        write_calibration(tmp_path / "none" / CALIBRATION_FILE, GIVEN)


def test_what_is_no_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_calibration(tmp_path / "x.json", replace(GIVEN, temperatures=(float("nan"),)))

    assert not (tmp_path / "x.json").exists()
