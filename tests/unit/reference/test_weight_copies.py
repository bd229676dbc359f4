"""``weight_copies`` on the CPU: less memory, the same answers, and words where a choice is not offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from deepinfer_core.backend.binding import Binder
from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.engine.opening import open_model
from deepinfer_core.errors import ConfigError, UnsupportedByBackend
from deepinfer_core.llm import LLM
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.quantize.rounding import quantize_rows
from deepinfer_core.reference.backend import CpuBackend
from deepinfer_core.reference.compiled_products import Maps
from deepinfer_core.sampling_params import SamplingParams

_PROMPTS = ["The river", "Count: one, two,"]


@pytest.fixture
def kept_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory of each map that was packed since."""
    sizes: list[int] = []
    make = Maps.of

    def of(maps: Sequence[Any], copies: str = "auto") -> Maps:
        made = make(maps, copies)
        sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(Maps, "of", of)
    return sizes


def _answers(weight_copies: str) -> list[tuple[int, ...]]:
    with LLM("tiny", accelerator="cpu", weight_copies=weight_copies, max_model_len=256) as llm:
        outputs = llm.generate(_PROMPTS, SamplingParams(temperature=0.0, max_tokens=12))
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def test_packed_weights_take_less_memory_and_give_the_same_answers(kept_bytes: list[int]) -> None:
    pytest.importorskip("numba", reason="without it weights are not kept at all")
    dense_answers = _answers("dense")
    dense_bytes = sum(kept_bytes)
    kept_bytes.clear()

    packed_answers = _answers("packed")

    assert packed_answers == dense_answers
    assert 3 * sum(kept_bytes) < dense_bytes


def test_a_backend_refuses_a_choice_that_it_does_not_offer() -> None:
    class Plain(CpuBackend):
        capabilities = Capabilities()

    with pytest.raises(UnsupportedByBackend, match="weight_copies='packed' is not offered; choose one of auto"):
        Binder(Plain(), weight_copies="packed")
    Binder(Plain(), weight_copies="auto")


def test_ops_that_have_only_dense_copies_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    weight = quantize_rows(torch.randn(32, 64), FORMATS["mxfp8"])

    binder = Binder(CpuBackend(), weight_copies="packed")
    bound = binder.bind(linear, weights={"weight": weight}, out="f32")

    (row,) = binder.finish().rows
    assert row.outcome == "reference"
    assert "weight_copies='packed'" in row.reason
    assert bound(torch.randn(2, 64)).shape == (2, 32)


def test_an_unknown_choice_is_named() -> None:
    with pytest.raises(ConfigError, match=r"weight_copies='dens' is unknown; choose one of auto, dense, packed"):
        EngineConfig(model="tiny", weight_copies="dens")
    assert open_model.__kwdefaults__["weight_copies"] == EngineConfig(model="tiny").weight_copies
