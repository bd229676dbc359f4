"""What goes wrong while drafts are made or judged stays where it is, and nothing of it is left."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core import RequestOutput, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.drafter import DraftedBlocks
from tests.engine.chaos import Improviser, play
from tests.engine.conftest import question
from tests.engine.drafting import (
    BLOCK,
    BLOCK_BYTES,
    Scripted,
    Tally,
    drafter_of,
    finish,
    may_wait,
    model,
    random_lengths,
    right_until,
    runner_of,
    shown,
    start,
)
from tests.engine.test_failures import Faulty

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
NUM_REQUESTS = 60


def encode(accelerator: str, text: str) -> list[int]:
    tokenizer = model(accelerator).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(question(text))


@cache
def prompts(accelerator: str) -> dict[str, list[int]]:
    texts = ["Tell a story about a zebra named Anton.", "Repeat exactly: red fox blue lamp", "Compute 60 + 15."]
    return {str(number): encode(accelerator, text) for number, text in enumerate(texts)}


@cache
def plain(accelerator: str) -> Mapping[str, tuple[int, ...]]:
    found = finish(start(model(accelerator, 0)), {key: (ids, PARAMS) for key, ids in prompts(accelerator).items()})
    return {key: record.outputs[0].token_ids for key, record in found.items()}


def add_all(engine: Engine, accelerator: str, params: SamplingParams = PARAMS) -> None:
    for key, ids in prompts(accelerator).items():
        engine.add(key, ids, params)


def ended(engine: Engine) -> dict[str, RequestOutput]:
    records = [record for record in engine.run() if record.finished]
    assert len({record.request_id for record in records}) == len(records)
    engine.scheduler.require_all_free()
    assert not engine.has_unfinished
    return {record.request_id: record for record in records}


def faulty(**faults: Any) -> Callable[[Any], Faulty]:
    return lambda inner: Faulty(inner, **faults)


def has_drafts(rows: Sequence[SequenceRows]) -> bool:
    return any(1 < len(row.token_ids) <= 1 + BLOCK for row in rows)


def raise_at(steps: Iterator[bool], error: BaseException) -> Callable[[Sequence[SequenceRows]], None]:
    """Raise in those steps with drafts that the iterator says."""

    def before_run(rows: Sequence[SequenceRows]) -> None:
        if has_drafts(rows) and next(steps, False):
            raise error

    return before_run


def test_a_step_of_drafts_that_raises_keeps_what_was_accepted_before(accelerator: str) -> None:
    wrap = faulty(before_run=raise_at(iter([False, True]), RuntimeError("the device is on fire")))
    engine = start(model(accelerator), max_num_seqs=2, wrap_executor=wrap)
    add_all(engine, accelerator)

    found = ended(engine)

    assert [found[key].outputs[0].finish_reason for key in "012"] == ["error", "error", "length"]
    for key in "01":
        tokens = found[key].outputs[0].token_ids
        assert len(tokens) > 1
        assert tokens == plain(accelerator)[key][: len(tokens)]
    assert found["2"].outputs[0].token_ids == plain(accelerator)["2"]


def test_an_interrupt_forgets_drafts_and_loses_no_token(accelerator: str) -> None:
    wrap = faulty(before_run=raise_at(iter([False, True, False, True]), KeyboardInterrupt()))
    engine = start(model(accelerator), wrap_executor=wrap)
    add_all(engine, accelerator)
    found: dict[str, RequestOutput] = {}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            found |= {record.request_id: record for record in engine.run() if record.finished}
        waiting = list(engine.scheduler._batcher.waiting)
        assert waiting
        assert all(not sequence.proposal.token_ids and not sequence.older_survival for sequence in waiting)

    found |= ended(engine)

    assert {key: record.outputs[0].token_ids for key, record in found.items()} == plain(accelerator)


@pytest.mark.parametrize("num_right", [0, 2, 5])
@pytest.mark.parametrize("bad_row", range(BLOCK + 1))
def test_a_row_that_is_not_finite_fails_its_request_where_it_is_reached(
    accelerator: str, num_right: int, bad_row: int
) -> None:
    """Behind a rejected draft it harms nobody; behind accepted ones it ends its request, which keeps those."""
    ids, neighbour = prompts(accelerator)["0"], prompts(accelerator)["1"]
    text = [*ids, *plain(accelerator)["0"]]
    other = [*neighbour, *plain(accelerator)["1"]]
    poison = iter([True])

    def spoil(logits: Tensor) -> Tensor:
        if len(logits) == 2 * (1 + BLOCK) and next(poison, False):
            logits = logits.clone()
            logits[bad_row] = torch.nan
        return logits

    def choose(row: Any, anchor: int, made: list[int]) -> list[int]:
        true = text if tuple(row.prompt_token_ids) == tuple(ids) else other
        return right_until(true, lambda _: num_right)(row, anchor, made)

    engine = start(model(accelerator), choose=choose, wrap_executor=faulty(after_logits=spoil))
    engine.add("0", ids, PARAMS)
    engine.add("1", neighbour, PARAMS)

    found = ended(engine)

    assert next(poison, None) is None, "no step had two whole blocks"
    assert found["1"].outputs[0].token_ids == plain(accelerator)["1"]
    tokens = found["0"].outputs[0].token_ids
    if bad_row > num_right:
        assert tokens == plain(accelerator)["0"]
        assert engine.statistics().num_numeric_errors == 0
    else:
        assert tokens == plain(accelerator)["0"][: 1 + bad_row]
        assert found["0"].outputs[0].finish_reason == "error"
        assert "not finite" in found["0"].outputs[0].error
        assert engine.statistics().num_numeric_errors == 1


def test_a_drafter_that_raises_ends_the_step_not_the_engine(accelerator: str) -> None:
    fails = iter([False, True])

    def choose(_: Any, __: int, made: list[int]) -> list[int]:
        if next(fails, False):
            raise ValueError("no idea")
        return made

    engine = start(model(accelerator), max_num_seqs=1, choose=choose)
    add_all(engine, accelerator)

    found = ended(engine)

    assert [found[key].outputs[0].finish_reason for key in "012"] == ["error", "length", "length"]
    assert "no idea" in found["0"].outputs[0].error
    assert found["0"].outputs[0].token_ids == plain(accelerator)["0"][:1]
    assert [found[key].outputs[0].token_ids for key in "12"] == [plain(accelerator)[key] for key in "12"]


class Doubtful(Scripted):
    """A drafter whose confidence, or whose drafts from some place on, are no numbers."""

    def __init__(self, inner: Any, first_missing: int) -> None:
        super().__init__(inner, lambda _, __, made: made)
        self.first_missing = first_missing

    def propose(self, *args: Any) -> DraftedBlocks:
        made = super().propose(*args)
        nothing = torch.full_like(made.confidence, math.nan)
        made.token_ids[:, self.first_missing :] = -1
        return replace(made, confidence=nothing, confidence_logits=nothing)


@pytest.mark.parametrize("first_missing", [0, 3, BLOCK])
def test_confidence_without_value_and_drafts_that_could_not_be_drawn_change_no_token(
    accelerator: str, first_missing: int
) -> None:
    engine = start(model(accelerator))
    runner_of(engine)._sampler._drafter = Doubtful(drafter_of(engine), first_missing)
    may_wait(engine)
    tally = Tally().watch(engine)
    add_all(engine, accelerator)

    found = ended(engine)

    assert {key: record.outputs[0].token_ids for key, record in found.items()} == plain(accelerator)
    most = max((verified for blocks in tally.blocks.values() for verified, _ in blocks), default=0)
    assert most == first_missing


@pytest.mark.parametrize("coupled", [True, False])
def test_a_draft_module_without_finite_values_only_costs_speed(
    accelerator: str, coupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(model(accelerator, coupled=coupled))
    module = drafter_of(engine)._module
    monkeypatch.setattr(module, "correct", lambda base, previous: base * math.nan)
    params = {"0": PARAMS, "1": SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)}
    requests = {key: (prompts(accelerator)[key], one) for key, one in params.items()}

    found = finish(engine, requests)

    assert shown(found) == shown(finish(start(model(accelerator, 0, coupled=coupled)), requests))


def test_requests_end_from_outside_between_blocks(accelerator: str) -> None:
    """Aborted, discarded, at their deadline and by closing, each with drafts that nobody will verify."""
    seconds = iter(range(1000))
    engine = start(model(accelerator), clock=lambda: float(next(seconds)))
    endless = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    add_all(engine, accelerator, endless)
    engine.add("late", prompts(accelerator)["0"], endless, timeout_s=30.0)
    while not any(sequence.proposal.token_ids for sequence in engine.scheduler._batcher.running):
        engine.step()
    engine.step()

    engine.abort("0")
    engine.discard(["1"])
    found = {}
    while "late" not in found:
        found |= {record.request_id: record for record in engine.step() if record.finished}
    found |= {record.request_id: record for record in engine.close()}

    reasons = {key: record.outputs[0].finish_reason for key, record in found.items()}
    assert reasons == {"0": "abort", "late": "timeout", "2": "abort"}
    for key, same in (("0", "0"), ("late", "0"), ("2", "2")):
        tokens = found[key].outputs[0].token_ids
        assert len(tokens) > 1
        assert tokens[:24] == plain(accelerator)[same][: len(tokens)]
    engine.scheduler.require_all_free()


def test_a_preempted_sequence_drops_its_drafts_and_gets_new_ones(accelerator: str) -> None:
    engine = start(model(accelerator), kv_cache_memory_gib=3 * BLOCK_BYTES / 2**30, headroom_blocks=0)
    padding = [5 + place % 900 for place in range(105)]
    requests = {key: (padding + ids, PARAMS) for key, ids in prompts(accelerator).items()}
    expected = finish(start(model(accelerator, 0)), requests)
    tally = Tally().watch(engine)
    preempt, dropped = engine.scheduler._batcher.preempt, []

    def noted(sequence: Any) -> None:
        had_drafts = bool(sequence.proposal.token_ids)
        preempt(sequence)
        assert not sequence.proposal.token_ids
        dropped.append((sequence.request_id, had_drafts, len(tally.blocks.get(sequence.request_id, []))))

    engine.scheduler._batcher.preempt = noted  # type: ignore[method-assign]

    found = finish(engine, requests)

    assert shown(found) == shown(expected)
    assert any(had_drafts for _, had_drafts, _ in dropped)
    assert all(len(tally.blocks[request_id]) > number for request_id, _, number in dropped)


@pytest.mark.parametrize("coupled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_whatever_happens_each_request_gets_exactly_one_last_record(accelerator: str, coupled: bool) -> None:
    source, ticks = random.Random(coupled), iter(range(10**6))
    opened = model(accelerator, coupled=coupled)
    engine = start(
        opened,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        kv_cache_memory_gib=9.5 * BLOCK_BYTES / 2**30,
        clock=lambda: float(next(ticks)),
        wrap_executor=lambda _: Improviser(
            source, opened.model.architecture.vocab_size, opened.model.device.torch_device
        ),
        planner=random_lengths(1),
    )
    play(engine, source, NUM_REQUESTS)

    engine.scheduler.require_all_free()
