"""An engine that measures its machine and chooses by itself how many drafts it verifies, and whether it makes any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core.engine import step_measurement
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.scheduler.draft_budget import AdaptiveLengths
from tests.engine.drafting import BLOCK, finish, model, runner_of, shown, start
from tests.engine.test_drafting_identity import asked


def adaptive(accelerator: str) -> OpenedModel:
    """The model of the other tests, whose engines choose by themselves."""
    opened = model(accelerator)
    ops = opened.model.drafting
    assert ops is not None
    return replace(opened, model=replace(opened.model, drafting=ops.resized(replace(ops.settings, is_adaptive=True))))


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_what_an_engine_chooses_changes_no_token(accelerator: str, overlap: str) -> None:
    engine = start(adaptive(accelerator), overlap=overlap)
    assert isinstance(engine.scheduler._drafts, AdaptiveLengths)

    found = finish(engine, asked(accelerator), staggered=True)

    assert shown(found) == shown(finish(start(model(accelerator, 0)), asked(accelerator)))
    assert engine.statistics().drafts.num_verified > 0


def test_steps_and_draft_passes_are_measured_before_the_first_request(accelerator: str) -> None:
    runner = runner_of(start(adaptive(accelerator)))
    drafter = runner._sampler._drafter
    assert drafter is not None

    times = step_measurement.measure_step_times(
        runner._model, runner._executor, drafter, max_num_seqs=4, max_rows=4 * (1 + BLOCK)
    )

    assert times._sizes == [1, 2, 4, 8, 16, 24]
    assert times._draft is not None
    assert times._draft[0] == [1, 2, 4]
    assert 0.0 < times.verify_s(1) <= times.verify_s(24)
    assert 0.0 < times.draft_s(1) <= times.draft_s(4)


@dataclass
class Clockwork:
    """A device on which each run takes what a list says."""

    seconds: Iterator[float]
    made: list[int] = field(default_factory=list)

    def timer(self) -> Any:
        marks: list[float] = []
        return SimpleNamespace(mark=lambda: marks.append(0.0), seconds=lambda: (next(self.seconds),))


def curve(seconds: list[float], largest: int, limit_s: float) -> dict[int, float]:
    device = Clockwork(iter(seconds))

    def make(size: int) -> Callable[[], object]:
        return lambda: size

    return step_measurement._curve(SimpleNamespace(device=device), largest, make, limit_s)  # type: ignore[arg-type]


def test_what_disturbs_one_round_leaves_no_trace() -> None:
    rounds = [[1.0, 2.0, 3.0], [9.0, 9.0, 9.0], [1.5, 1.5, 9.0]]

    assert curve([second for row in rounds for second in row], 4, 99.0) == {1: 1.0, 2: 1.5, 4: 3.0}


def test_sizes_are_left_out_when_time_is_over_but_two_are_measured_always() -> None:
    assert curve([5.0] * 6, 64, 1.0) == {1: 5.0, 2: 5.0}
    assert curve([0.25] * 9, 64, 2.0) == {1: 0.25, 2: 0.25, 4: 0.25}
