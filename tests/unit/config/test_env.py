"""The environment as settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepinfer_core.config.env import Environment, read, set_missing
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import ConfigError


def test_every_name_is_read() -> None:
    environ = {
        "DEEPINFER_CONFIG": "serve.toml",
        "DEEPINFER_ACCELERATOR": "cpu",
        "DEEPINFER_LOG_LEVEL": "INFO",
        "DEEPINFER_CACHE_DIR": "/var/cache/deepinfer",
        "DEEPINFER_FALLBACK": "strict",
    }

    assert read(environ) == Environment(
        config=Path("serve.toml"),
        accelerator="cpu",
        log_level="info",
        cache_dir=Path("/var/cache/deepinfer"),
        fallback=FallbackPolicy.STRICT,
    )


def test_nothing_set_and_empty_values_are_the_same() -> None:
    assert (
        read({"DEEPINFER_ACCELERATOR": "", "DEEPINFER_FALLBACK": "", "DEEPINFER_CONFIG": ""})
        == read({})
        == Environment()
    )


def test_other_programs_variables_are_none_of_our_business() -> None:
    assert read({"PATH": "/bin", "DEEP": "1", "CUDA_VISIBLE_DEVICES": "0"}) == Environment()


def test_misspelt_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"DEEPINFER_ACCELERATR": "cpu"})

    assert (
        str(caught.value) == "environment: DEEPINFER_ACCELERATR is not a setting; did you mean 'DEEPINFER_ACCELERATOR'?"
    )


def test_every_problem_is_told_at_once() -> None:
    environ = {"DEEPINFER_BACKEND": "cpu", "DEEPINFER_LOG_LEVEL": "loud", "DEEPINFER_FALLBACK": "strickt"}

    with pytest.raises(ConfigError) as caught:
        read(environ)

    assert len(caught.value.problems) == 3
    assert "DEEPINFER_FALLBACK='strickt' is not allowed" in str(caught.value)
    assert "(one of strict, decompose, allow_reference); did you mean 'strict'?" in str(caught.value)


def test_home_is_expanded_in_paths() -> None:
    assert read({"DEEPINFER_CACHE_DIR": "~/models"}).cache_dir == Path.home() / "models"


def test_set_missing_never_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_USERS", "mine")
    monkeypatch.delenv("VENDOR_NEW", raising=False)

    added = set_missing({"VENDOR_USERS": "theirs", "VENDOR_NEW": "1"})

    assert added == {"VENDOR_NEW": "1"}
    assert os.environ["VENDOR_USERS"] == "mine"
    assert os.environ.pop("VENDOR_NEW") == "1"
