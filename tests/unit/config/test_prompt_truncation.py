"""Settings of prompt truncation: what is refused, and which token is the first that decoder layers see."""

from __future__ import annotations

import pytest

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.engine.model_config import find_config
from deepinfer_core.errors import ConfigError


@pytest.fixture(scope="module")
def released() -> ModelArchitecture:
    return find_config("released").architecture


def test_everything_wrong_is_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PromptTruncation(mode="compakt", keep_tokens=0)  # type: ignore[arg-type]

    assert caught.value.problems == (
        "mode='compakt' is unknown; choose one of off, mask, compact; did you mean 'compact'?",
        "keep_tokens=0 must be a whole number, 1 or more",
    )


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_fewer_tokens_than_a_window_after_a_rollback_needs_are_refused(released: ModelArchitecture, mode: str) -> None:
    PromptTruncation(mode=mode, keep_tokens=134).check(released.attention)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"keep_tokens=133 is too few: the window of 128 tokens and 6 .* need 134"):
        PromptTruncation(mode=mode, keep_tokens=133).check(released.attention)  # type: ignore[arg-type]


def test_off_keeps_everything_whatever_the_number(released: ModelArchitecture) -> None:
    off = PromptTruncation(keep_tokens=5)

    off.check(released.attention)
    assert not off.is_on
    assert off.first_kept(1000) == NO_TRUNCATION.first_kept(1000) == 0


@pytest.mark.parametrize(("total", "first"), [(1, 0), (139, 0), (140, 0), (141, 1), (1000, 860)])
def test_the_first_kept_token(total: int, first: int) -> None:
    assert PromptTruncation(mode="compact").first_kept(total) == first
