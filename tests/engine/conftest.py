"""One open tiny model for the tests of this folder, and engines of their own over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from deepinfer_core import LLM, EngineConfig
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel, open_model

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def accelerator(request: pytest.FixtureRequest) -> str:
    """What the tests of this folder run on: ``--accelerator``, the CPU unless asked otherwise."""
    return str(request.config.getoption("--accelerator"))


@pytest.fixture(scope="session")
def llm(accelerator: str) -> Iterator[LLM]:
    with LLM("tiny", accelerator=accelerator, max_num_seqs=8) as opened:
        yield opened


@pytest.fixture(scope="session")
def opened(llm: LLM) -> OpenedModel:
    """The model of ``llm`` without its engine."""
    return llm._opened.opened


@pytest.fixture(scope="session")
def opened_f32(accelerator: str) -> OpenedModel:
    """The tiny model in float32, where one more row in a step moves no rounding."""
    return open_model("tiny", accelerator=accelerator, numerics="f32")


@pytest.fixture(scope="session")
def opened_invariant(accelerator: str) -> OpenedModel:
    """The model in the arithmetic of the release, where every rounding shows, with the same bits in any company."""
    return open_model("tiny", accelerator=accelerator, batch_invariant=True)


@pytest.fixture(scope="session")
def make_engine(opened: OpenedModel) -> MakeEngine:
    """Makes engines over the tiny model; settings are those of the configuration."""

    def make(model: OpenedModel = opened, **settings: object) -> Engine:
        limits = {"max_num_seqs": 8, "max_model_len": 512, **settings}
        wrap = limits.pop("wrap_executor", None)
        time = {name: limits.pop(name) for name in ("clock", "nap") if name in limits}
        return Engine(model, EngineConfig(model="tiny", **limits), wrap_executor=wrap, **time)

    return make


def question(text: str) -> str:
    """A question in the chat format of the tiny model."""
    return f"<｜begin▁of▁sentence｜><｜User｜>{text}<｜Assistant｜></think>"
