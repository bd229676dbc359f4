"""Activations: what a step's tensors hold at once is within the sum that the architecture gives."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest

from deepinfer_core.backend.binding import BoundOp
from deepinfer_core.conformance.values import tensors
from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.activations import StepSize, activation_bytes
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.runtime.model import BoundModel
from deepinfer_core.runtime.workspace import EngineLimits


class LiveResults:
    """Bytes of what bound ops have returned and somebody still has."""

    def __init__(self) -> None:
        self.current = self.peak = 0
        self._seen: dict[int, Any] = {}

    def add(self, result: Any) -> None:
        for _, tensor in tensors(result, "result"):
            storage = tensor.untyped_storage()
            key, size = id(storage), storage.nbytes()
            if key not in self._seen:
                self._seen[key] = weakref.ref(storage, partial(self._forget, key, size))
                self.current += size
        self.peak = max(self.peak, self.current)

    def _forget(self, key: int, size: int, _: object) -> None:
        del self._seen[key]
        self.current -= size


@pytest.fixture(scope="module")
def model() -> BoundModel:
    return open_model("tiny", accelerator="cpu").model


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> LiveResults:
    found, original = LiveResults(), BoundOp.__call__

    def call(bound: BoundOp, *args: Any, **kwargs: Any) -> Any:
        result = original(bound, *args, **kwargs)
        found.add(result)
        return result

    monkeypatch.setattr(BoundOp, "__call__", call)
    return found


def _rows(model: BoundModel, number: int, start: int, stop: int) -> SequenceRows:
    tokens = [5 + (place * 7) % 900 for place in range(stop)]
    compressed = [model.compressed_map[token] for token in tokens]
    return SequenceRows(
        token_ids=tokens[start:],
        compressed_ids=compressed[start:],
        start=start,
        ngram_history=list(reversed(compressed[max(start - model.lookback, 0) : start])),
        state_slot=1 + number,
        blocks=[1 + 8 * number + block for block in range(8)],
    )


@pytest.mark.parametrize(("first", "stop"), [(0, 300), (0, 900), (512, 900)])
def test_tensors_of_a_prefill_are_within_the_sum(model: BoundModel, live: LiveResults, first: int, stop: int) -> None:
    executor = Executor(model, model.allocate(8, 1))
    size = StepSize(rows=stop - first, sequences=1, max_context=1024, context_tokens=stop)

    executor.run([_rows(model, 0, first, stop)], prefill=True)

    declared = activation_bytes(model.architecture, model.numerics, size)
    assert 0.3 * declared <= live.peak <= declared, (live.peak, declared)


def test_tensors_of_a_decode_step_are_within_the_sum(model: BoundModel, live: LiveResults) -> None:
    executor = Executor(model, model.allocate(64, 8))
    size = StepSize(rows=8, sequences=8, max_context=1024)

    hidden, _ = executor.run([_rows(model, number, 100, 101) for number in range(8)], prefill=False)
    executor.logits(hidden)

    assert live.peak <= activation_bytes(model.architecture, model.numerics, size)


def test_larger_limits_never_declare_less(model: BoundModel) -> None:
    small = EngineLimits(max_num_batched_tokens=256, max_num_seqs=4, max_model_len=512)
    totals = [
        model.workspace(limits).total_bytes
        for limits in (
            small,
            EngineLimits(max_num_batched_tokens=2048, max_num_seqs=4, max_model_len=512),
            EngineLimits(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=512),
            EngineLimits(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096),
        )
    ]

    assert totals == sorted(totals)


def test_ops_that_state_nothing_are_named(model: BoundModel) -> None:
    workspace = model.workspace(EngineLimits(max_num_batched_tokens=256, max_num_seqs=4, max_model_len=512))

    assert "linear.linear" in workspace.unstated
    assert f"{len(workspace.unstated)} ops do not state what they take" in str(workspace)
