"""What cannot be drafted is refused in words, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, EngineConfig
from deepinfer_core.config.speculation import SpeculativeConfig, speculative_config
from deepinfer_core.errors import ConfigError
from deepinfer_core.weights import load
from tests.model.configs import NO_DRAFT, config_with


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading or making a weight fails the test."""

    def read(*_: Any, **__: Any) -> None:
        pytest.fail("weights were read")

    monkeypatch.setattr(load, "assemble", read)


def refusal(accelerator: str, model: str = "tiny", **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        LLM(model, accelerator=accelerator, **settings)
    return refused.value


@pytest.mark.usefixtures("no_weights")
def test_more_drafts_than_the_module_has_learnt_are_refused(accelerator: str) -> None:
    error = refusal(accelerator, speculative_config={"num_draft_tokens": 6})

    assert len(error.problems) == 1
    assert "num_draft_tokens=6" in error.problems[0]
    assert "5" in error.problems[0]


@pytest.mark.usefixtures("no_weights")
def test_a_model_without_drafts_is_refused(accelerator: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_with(NO_DRAFT)))

    error = refusal(accelerator, str(tmp_path), load_format="dummy", speculative_config={})

    assert "no draft module" in str(error)
    assert "leave speculative_config out" in str(error)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("calibration", [(1.0,) * 4, [1.0] * 6, (2.0,)])
def test_a_calibration_of_another_length_is_refused(accelerator: str, calibration: Any) -> None:
    error = refusal(accelerator, speculative_config={"calibration": calibration})

    assert f"{len(calibration)} temperatures for 5 drafts" in str(error)


@pytest.mark.usefixtures("no_weights")
def test_a_calibration_file_that_is_not_there_is_refused(accelerator: str, tmp_path: Path) -> None:
    refusal(accelerator, speculative_config={"calibration": str(tmp_path / "missing.json")})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "eagle"}, ["method='eagle'", "dspark"]),
        ({"verification": "fixd"}, ["verification='fixd'", "fixed"]),
        ({"acceptance": "couple"}, ["acceptance='couple'", "coupled"]),
        ({"num_drafts": 3}, ["num_drafts", "no setting"]),
        ({"num_draft_tokens": 0}, ["num_draft_tokens=0"]),
        ({"num_draft_tokens": True}, ["num_draft_tokens=True"]),
        ({"num_draft_tokens": 2.0}, ["num_draft_tokens=2.0"]),
        ({"num_draft_tokens": "many"}, ["num_draft_tokens='many'"]),
        ({"calibration": ()}, ["calibration=()"]),
        ({"calibration": (1.0, -1.0)}, ["calibration=(1.0, -1.0)"]),
        ({"calibration": (float("inf"),)}, ["calibration=(inf,)"]),
        ({"calibration": ("1",)}, ["calibration=('1',)"]),
    ],
    ids=str,
)
def test_unknown_names_and_values_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig(model="tiny", speculative_config=settings)

    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        SpeculativeConfig(method="a", verification="b", acceptance="c", num_draft_tokens=-1, calibration=())

    assert len(refused.value.problems) == 5


@pytest.mark.parametrize("value", [3, "dspark", [("method", "dspark")]])
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="SpeculativeConfig"):
        EngineConfig(model="tiny", speculative_config=value)


def test_a_mapping_is_the_record_of_its_fields() -> None:
    named = speculative_config({"num_speculative_tokens": 3, "calibration": [1.0, 2.0, 1.5]})

    assert named == SpeculativeConfig(num_draft_tokens=3, calibration=(1.0, 2.0, 1.5))
    assert speculative_config(named) is named
    assert speculative_config(None) is None
    assert EngineConfig(model="tiny", speculative_config={}).speculative_config == SpeculativeConfig()


@pytest.mark.parametrize(
    ("acceptance", "batch_invariant", "coupled"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("coupled", False, True),
        ("rejection", True, False),
    ],
)
def test_reproducible_tokens_want_coupled_drafts(acceptance: str, batch_invariant: bool, coupled: bool) -> None:
    assert SpeculativeConfig(acceptance=acceptance).is_coupled(batch_invariant=batch_invariant) is coupled
