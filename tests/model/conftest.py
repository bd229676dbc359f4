"""Models under test, and what they compute when a whole prompt is fed at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.model import BoundModel
from tests.model.driver import Driver

MINI_B = Path(__file__).parents[1] / "golden" / "mini_b" / "checkpoint"
IMAGES = frozenset({9, 10, 40})
"""Positions that the n-gram memory must not see, in every prompt of the mini_b tests."""


@dataclass(frozen=True)
class Whole:
    """One prompt, fed at once: logits of every row and the live rows of every cache afterwards."""

    logits: Tensor
    cached: dict[str, Tensor]


def random_tokens(count: int, seed: int, below: int = 250) -> list[int]:
    """A text without meaning."""
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed_whole(model: BoundModel, tokens: list[int], images: frozenset[int] = frozenset()) -> Whole:
    """Feed a prompt in one step, on caches of its own."""
    driver = Driver(model, num_slots=1, blocks_each=model.layout.blocks_for(len(tokens)))
    sequence = driver.sequence(tokens, images)
    (logits,) = driver.feed((sequence, len(tokens)), prefill=True)
    return Whole(logits, driver.cached(sequence))


@pytest.fixture(scope="session")
def mini_b() -> BoundModel:
    """Every kind of layer, window 32, in float64 arithmetic between the cache quantisers."""
    return open_model(str(MINI_B), accelerator="cpu", numerics="f64", max_model_len=512).model


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    """Three windows of text for mini_b."""
    return random_tokens(96, seed=1, below=700)


@pytest.fixture(scope="session")
def whole(mini_b: BoundModel, prompt: list[int]) -> dict[int, Whole]:
    """The first ``n`` tokens of the prompt fed at once, by ``n``."""
    return {n: feed_whole(mini_b, prompt[:n], IMAGES) for n in range(1, len(prompt) + 1)}
