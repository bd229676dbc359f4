"""Settings of speculative decoding: what is refused and in which words, vLLM's names, tables of settings files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.config.checkpoint import read_architecture
from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.config.env import Environment
from deepinfer_core.config.settings import Resolved, resolve
from deepinfer_core.config.speculation import SpeculativeConfig, speculative_config
from deepinfer_core.errors import ConfigError

TEMPERATURES = "must be auto, none, a file, or positive numbers, one for each draft"
LENGTH = "must be a whole number, 1 or more, or auto"
CHOICES = "is unknown; choose one of"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"method": "eagle"}, f"method='eagle' {CHOICES} dspark"),
        ({"method": "dpsark"}, f"method='dpsark' {CHOICES} dspark; did you mean 'dspark'?"),
        ({"verification": "fixd"}, f"verification='fixd' {CHOICES} adaptive, fixed; did you mean 'fixed'?"),
        ({"acceptance": 3}, f"acceptance=3 {CHOICES} auto, rejection, coupled"),
        ({"num_draft_tokens": 0}, f"num_draft_tokens=0 {LENGTH}"),
        ({"num_draft_tokens": True}, f"num_draft_tokens=True {LENGTH}"),
        ({"num_draft_tokens": 2.0}, f"num_draft_tokens=2.0 {LENGTH}"),
        ({"num_draft_tokens": "many"}, f"num_draft_tokens='many' {LENGTH}"),
        ({"calibration": ()}, f"calibration=() {TEMPERATURES}"),
        ({"calibration": (1.0, 0.0)}, f"calibration=(1.0, 0.0) {TEMPERATURES}"),
        ({"calibration": (float("inf"),)}, f"calibration=(inf,) {TEMPERATURES}"),
        ({"calibration": (True,)}, f"calibration=(True,) {TEMPERATURES}"),
        ({"calibration": 1.5}, f"calibration=1.5 {TEMPERATURES}"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(**settings)

    assert list(caught.value.problems) == [problem]


def test_all_wrong_settings_are_in_one_error_with_those_of_the_engine() -> None:
    wrong = {"method": "x", "num_draft_tokens": -1, "calibration": (-1,)}

    with pytest.raises(ConfigError) as caught:
        EngineConfig(model="tiny", load_format="x", speculative_config=wrong)  # pyright: ignore[reportArgumentType]

    assert [problem.split("=")[0] for problem in caught.value.problems] == [
        "load_format",
        "method",
        "num_draft_tokens",
        "calibration",
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("dspark", "speculative_config='dspark' must be a SpeculativeConfig, a mapping of its fields, or None"),
        (True, "speculative_config=True must be a SpeculativeConfig, a mapping of its fields, or None"),
        ({"verificaton": "fixed"}, "verificaton is no setting of speculation; did you mean 'verification'?"),
        (
            {"num_draft_tokens": 2, "num_speculative_tokens": 2},
            "num_speculative_tokens is another name of num_draft_tokens; give one",
        ),
    ],
)
def test_a_value_that_is_no_record_is_refused_in_words(value: object, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        speculative_config(value)

    assert list(caught.value.problems) == [problem]


def test_mappings_are_records_and_vllms_name_counts() -> None:
    given = {"method": "dspark", "num_speculative_tokens": 3, "calibration": [0.5, 1, 2]}

    expected = SpeculativeConfig(num_draft_tokens=3, calibration=(0.5, 1, 2))
    assert speculative_config(given) == expected
    assert speculative_config(expected) is expected
    assert speculative_config({}) == SpeculativeConfig()
    assert speculative_config(None) is None
    assert EngineConfig(model="tiny").speculative_config is None


def test_the_length_is_the_models_unless_it_is_shorter(released: dict[str, Any]) -> None:
    architecture = read_architecture(released)[0]
    assert architecture.draft is not None
    block = architecture.draft.block_size

    assert SpeculativeConfig().draft_length(architecture) == block
    assert SpeculativeConfig(num_draft_tokens=2).draft_length(architecture) == 2
    with pytest.raises(ConfigError, match=rf"num_draft_tokens={block + 1}, but .* blocks of {block}; ask for {block}"):
        SpeculativeConfig(num_draft_tokens=block + 1).draft_length(architecture)
    with pytest.raises(ConfigError, match=r"the model has no draft module .* leave speculative_config out"):
        SpeculativeConfig().draft_length(replace(architecture, draft=None))


@pytest.mark.parametrize(
    ("acceptance", "expected"),
    [("auto", (False, True)), ("rejection", (False, False)), ("coupled", (True, True))],
)
def test_tokens_are_coupled_where_they_must_be_reproducible(acceptance: str, expected: tuple[bool, bool]) -> None:
    config = SpeculativeConfig(acceptance=acceptance)

    assert tuple(config.is_coupled(batch_invariant=invariant) for invariant in (False, True)) == expected


def resolved(folder: Path, text: str, **given: Any) -> Resolved:
    """What a settings file and a caller make together."""
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return resolve({"model": "tiny", **given}, Environment(config=file))


def test_a_settings_file_has_a_table(tmp_path: Path) -> None:
    text = """
max_num_seqs = 64

[speculative_config]
num_speculative_tokens = 3
verification = "fixed"
calibration = [1.0, 1.5, 2.0]
"""

    settings = resolved(tmp_path, text)

    assert settings.config.speculative_config == SpeculativeConfig(
        num_draft_tokens=3, verification="fixed", calibration=(1.0, 1.5, 2.0)
    )
    assert settings.sources["speculative_config"] == f"file {tmp_path / 'settings.toml'}"


def test_an_empty_table_turns_drafts_on(tmp_path: Path) -> None:
    assert resolved(tmp_path, "[speculative_config]\n").config.speculative_config == SpeculativeConfig()


def test_fields_that_are_given_win_over_those_of_the_file(tmp_path: Path) -> None:
    table = '[speculative_config]\nnum_draft_tokens = 3\nverification = "fixed"\n'

    settings = resolved(tmp_path, table, speculative_config={"num_speculative_tokens": 2})

    assert settings.config.speculative_config == SpeculativeConfig(num_draft_tokens=2, verification="fixed")
    assert settings.sources["speculative_config"] == f"given over file {tmp_path / 'settings.toml'}"


@pytest.mark.parametrize("given", [None, SpeculativeConfig(acceptance="coupled")])
def test_a_record_or_none_replaces_the_table(tmp_path: Path, given: SpeculativeConfig | None) -> None:
    settings = resolved(tmp_path, "[speculative_config]\nnum_draft_tokens = 3\n", speculative_config=given)

    assert settings.config.speculative_config == given
    assert settings.sources["speculative_config"] == "given"


def test_a_wrong_table_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_drafts is no setting of speculation"):
        resolved(tmp_path, "[speculative_config]\nnum_drafts = 3\n")
