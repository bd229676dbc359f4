"""The released arithmetic: decode and prompt agree as distributions, since rounding noise flips codes and choices."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.engine.opening import open_model
from tests.model.conftest import feed_whole
from tests.model.driver import Driver

TEXT = "What is 17 + 25? Sort: 5 2 9 4. What is 8 + 61?"

BOUNDS = {"released": 1e-2, "f32": 1e-8}
"""Mean divergence (nats) of the next-token distribution. Measured: 7e-4 and 3e-13."""


@pytest.mark.parametrize("numerics", BOUNDS)
def test_decode_agrees_with_the_prompt(numerics: str) -> None:
    opened = open_model("tiny", accelerator="cpu", numerics=numerics, max_model_len=128)
    assert opened.tokenizer is not None
    tokens = opened.tokenizer.encode(TEXT)
    whole = feed_whole(opened.model, tokens).logits.double().log_softmax(-1)
    driver = Driver(opened.model)
    sequence = driver.sequence(tokens)

    rows = [driver.feed((sequence, 9), prefill=True)[0]]
    while sequence.length < len(tokens):
        rows += driver.feed((sequence, min(3, len(tokens) - sequence.length)))
    found = torch.cat(rows).double().log_softmax(-1)

    divergence = (whole.exp() * (whole - found)).sum(-1).mean()
    assert divergence < BOUNDS[numerics]
    assert (found.argmax(-1) == whole.argmax(-1)).double().mean() >= 0.9
