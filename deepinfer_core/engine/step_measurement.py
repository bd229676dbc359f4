"""What decode steps take on this machine, measured before the first request (spec dspark 5.2)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from deepinfer_core.backend.device import make_timer
from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.engine.step_sampler import ROWS_AT_ONCE
from deepinfer_core.logging import get_logger
from deepinfer_core.runtime.batch import NO_COMPRESSED_ID, SequenceRows, int32_row
from deepinfer_core.runtime.captured import row_sizes
from deepinfer_core.runtime.drafter import DUMMY_SLOT
from deepinfer_core.runtime.sampling_tensors import SamplingRow
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduler.step_time import StepTimeModel

if TYPE_CHECKING:
    from deepinfer_core.engine.step_runner import StepExecutor
    from deepinfer_core.runtime.drafter import Drafter
    from deepinfer_core.runtime.model import BoundModel

log = get_logger(__name__)

_DUMMY_BLOCK = 0
_POSITION = BLOCK_TOKENS - 1
"""Of every measured row: the last one of its only block, so that the window is as full as one block allows."""
_SAMPLED_ROW = SamplingRow(params=SamplingParams(temperature=1.0), seed=0, position=_POSITION)
_RUNS = 3
_SECONDS = 4.0
"""Of measured runs, for both curves together: when they are over, larger sizes are left out, and the curve goes on
straight. What the first run of a size takes, where it is recorded, does not count."""


def measure_step_times(
    model: BoundModel, executor: StepExecutor, drafter: Drafter, *, max_num_seqs: int, max_rows: int
) -> StepTimeModel:
    """Run decode steps and draft passes of many sizes on the dummy block and slot, whose contents nobody reads.

    Every row stands for a sequence of its own with a random token, so that all experts are visited.

    Args:
        model: The model.
        executor: Runs it.
        drafter: Makes its drafts.
        max_num_seqs: Sequences of a step at most.
        max_rows: Rows of a decode step at most.
    """
    began = time.perf_counter()
    numbers = random.Random(0)  # noqa: S311  # the same rows on every start
    tokens = [numbers.randrange(model.architecture.vocab_size) for _ in range(max_rows)]
    draft = _curve(model, max_num_seqs, lambda size: _draft(model, drafter, tokens[:size]), _SECONDS / 4)
    verify = _curve(model, max_rows, lambda size: _verify(model, executor, tokens[:size]), _SECONDS * 3 / 4)
    log.info(
        "adaptive drafts: steps of up to %d rows and drafts of up to %d sequences measured in %.1f s",
        max(verify),
        max(draft),
        time.perf_counter() - began,
    )
    return StepTimeModel(verify, draft=draft, interpolate=not model.captures_graphs)


def _curve(
    model: BoundModel, largest: int, make: Callable[[int], Callable[[], object]], limit_s: float
) -> dict[int, float]:
    """Size -> seconds of the fastest run, which others disturbed least; two sizes at least.

    All sizes are run one after the other, and then again: what disturbs the machine for a while disturbs no size alone.
    """
    works: dict[int, Callable[[], object]] = {}
    found: dict[int, float] = {}
    for size in _sizes(largest):
        if len(found) > 1 and sum(found.values()) > limit_s / _RUNS:
            break
        works[size] = make(size)
        works[size]()
        found[size] = _seconds(model, works[size])
    for _ in range(_RUNS - 1):
        found = {size: min(found[size], _seconds(model, work)) for size, work in works.items()}
    return found


def _seconds(model: BoundModel, work: Callable[[], object]) -> float:
    """Of one run."""
    timer = make_timer(model.device)
    timer.mark()
    work()
    timer.mark()
    return timer.seconds()[0]


def _sizes(largest: int) -> Iterator[int]:
    """Every size that a recorded step can have up to the one that holds the largest."""
    for size in row_sizes():
        yield size
        if size >= largest:
            return


def _verify(model: BoundModel, executor: StepExecutor, tokens: list[int]) -> Callable[[], object]:
    """A forward pass, and the sampling of all its rows."""
    lookback = model.lookback
    rows = [
        SequenceRows(
            token_ids=[token],
            compressed_ids=[model.compressed_map[token] if lookback else token],
            start=_POSITION,
            ngram_history=[NO_COMPRESSED_ID] * lookback,
            state_slot=DUMMY_SLOT,
            blocks=[_DUMMY_BLOCK],
        )
        for token in tokens
    ]
    sampled = [_SAMPLED_ROW] * len(tokens)

    def work() -> None:
        hidden = executor.forward(rows, prefill=False).rows
        for begin in range(0, len(tokens), ROWS_AT_ONCE):
            part = sampled[begin : begin + ROWS_AT_ONCE]
            model.sampler(executor.logits(hidden[begin : begin + ROWS_AT_ONCE]).float(), part)

    return work


def _draft(model: BoundModel, drafter: Drafter, tokens: list[int]) -> Callable[[], object]:
    upload, count = model.device.upload, len(tokens)
    ids, positions = upload(int32_row(tokens)), upload(int32_row([_POSITION] * count))
    rows, slots = [_SAMPLED_ROW] * count, [DUMMY_SLOT] * count

    return lambda: drafter.propose(ids, positions, slots, rows)
