"""Cache sizing and weights on a device that is too small: what is needed and what is free is said before anything is
allocated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import deepinfer_core
from deepinfer_core.backend import registry
from deepinfer_core.backend.device import MemoryInfo
from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.engine.cache_size import num_cache_blocks
from deepinfer_core.engine.opening import open_model
from deepinfer_core.errors import CapacityError
from deepinfer_core.null.backend import NullBackend
from deepinfer_core.null.device import NullDevice
from deepinfer_core.runtime.model import BoundModel
from deepinfer_core.runtime.workspace import EngineLimits
from deepinfer_core.weights import load

RELEASED = Path(deepinfer_core.__file__).parent / "models" / "released"
GIB = 1 << 30
CONFIG = EngineConfig(model="tiny", max_num_seqs=4, max_num_batched_tokens=256)


class SmallDevice(NullDevice):
    """A device of its own with so much free memory, whose tensors would be elsewhere than the host's."""

    def __init__(self, free_bytes: int, kind: str = "cpu") -> None:
        super().__init__()
        self._free, self._kind = free_bytes, kind

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self._kind)

    @property
    def facts(self) -> Mapping[str, str]:
        return {**super().facts, "name": "a small device"}

    def memory(self) -> MemoryInfo:
        return MemoryInfo(free_bytes=self._free, total_bytes=8 * GIB)


class SmallBackend(NullBackend):
    """The null backend on such a device."""

    def device(self, index: int = 0) -> SmallDevice:
        assert index == 0
        return SmallDevice(8 * GIB, "meta")


@pytest.fixture(scope="module")
def model() -> BoundModel:
    return open_model("tiny", accelerator="cpu").model


def on(model: BoundModel, free_bytes: int) -> BoundModel:
    return replace(model, device=SmallDevice(free_bytes))


def needed(model: BoundModel) -> int:
    """Workspace and state slots of the engine."""
    limits = EngineLimits(max_num_batched_tokens=256, max_num_seqs=4, max_model_len=1024)
    return model.workspace(limits).total_bytes + 5 * model.layout.bytes_per_slot


def test_workspace_and_slots_are_taken_off_before_the_share(model: BoundModel) -> None:
    block = model.layout.bytes_per_block
    free = needed(model) + 40 * block

    assert num_cache_blocks(on(model, free), CONFIG, 1024, 4) == 10
    assert num_cache_blocks(on(model, free + 40 * block), CONFIG, 1024, 4) == 20


def test_all_ops_that_state_their_workspace_leave_more_to_the_cache(model: BoundModel) -> None:
    stated = [replace(op, workspace=lambda _: 0) for op in model.ops]
    free = needed(model) + 20 * model.layout.bytes_per_block

    assert num_cache_blocks(replace(on(model, free), ops=tuple(stated)), CONFIG, 1024, 4) == 18


def test_no_more_blocks_than_all_sequences_need(model: BoundModel) -> None:
    assert num_cache_blocks(on(model, 1 << 40), CONFIG, 1024, 4) == 4 * 8


def test_memory_without_room_for_a_block_is_refused_with_needed_and_free(model: BoundModel) -> None:
    with pytest.raises(CapacityError) as caught:
        num_cache_blocks(on(model, needed(model)), CONFIG, 1024, 4)

    text = str(caught.value)
    total = (needed(model) + model.layout.bytes_per_block) / GIB
    assert f"{total:.3f} GiB are needed besides the weights" in text
    assert f"{needed(model) / GIB:.3f} GiB are free" in text
    assert "workspace" in text
    assert "lower max_num_batched_tokens, max_num_seqs or max_model_len" in text


def test_size_that_was_asked_for_is_taken_with_a_warning(model: BoundModel, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(CONFIG, kv_cache_memory_gib=16 * model.layout.bytes_per_block / GIB)

    with caplog.at_level(logging.WARNING):
        blocks = num_cache_blocks(on(model, needed(model)), config, 1024, 4)

    assert blocks == 16
    assert "GiB are needed besides the weights" in caplog.text


def test_weights_that_do_not_fit_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*args: object) -> None:
        raise AssertionError("weights were made")

    monkeypatch.setattr(registry, "load", lambda info: SmallBackend())
    monkeypatch.setattr(load, "DummyTensors", made)

    with pytest.raises(CapacityError) as caught:
        open_model(str(RELEASED), accelerator="null", load_format="dummy")

    text = str(caught.value)
    assert "8.0 of 8.0 GiB are free on a small device" in text
    assert "routed experts" in text
    assert "'deepinfer fit" in text
