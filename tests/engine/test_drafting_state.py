"""A step leaves behind what single tokens would have left, however many drafts it verified and rejected (B1)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer_core import SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from tests.engine.drafting import BLOCK, Lengths, model, right_until, runner_of, shown, start
from tests.model.driver import Driver, FedSequence

PROMPT = [5 + (place * 7) % 900 for place in range(121)]
"""Longer than the ring of a window; answers grow into a second cache block."""
WAYS = [(length, right) for length in range(BLOCK + 1) for right in range(length + 1)]
"""Drafts that each step verifies, and how many of them it accepts."""

Cached = dict[str, Tensor]


def params(seed: int = 0) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=13, ignore_eos=True, logprobs=4, seed=seed)


def cached(engine: Engine, sequence: Sequence) -> Cached:
    """Values of all rows that a later step of a sequence may read, those of the draft module included."""
    return {name: rows.clone() for name, rows in driver_of(engine).cached(fed(sequence)).items()}


def driver_of(engine: Engine) -> Driver:
    """Knows which rows of the engine's caches are alive."""
    driver = Driver(runner_of(engine)._model, num_slots=1)
    driver.caches = runner_of(engine)._transfer._caches
    return driver


def fed(sequence: Sequence) -> FedSequence:
    length = sequence.num_computed_tokens
    return FedSequence(sequence.token_ids, sequence.state_slot, sequence.block_ids, length=length)


def decoding(engine: Engine) -> list[Sequence]:
    return [s for s in engine.scheduler._batcher.running if s.status is SequenceStatus.DECODING]


@cache
def token_by_token(accelerator: str) -> tuple[list[int], dict[int, Cached], object]:
    """Tokens without drafts, what is cached at each length, and what a caller sees.

    The draft module's context is written, but it never runs.
    """
    engine = start(model(accelerator), planner=Lengths(lambda *_: 0, lambda: False))
    engine.add("a", PROMPT, params())
    by_length: dict[int, Cached] = {}
    while engine.has_unfinished:
        records = engine.step()
        for sequence in decoding(engine):
            by_length[sequence.num_computed_tokens] = cached(engine, sequence)
    return [*PROMPT, *records[0].outputs[0].token_ids], by_length, shown({"a": records[0]})["a"]


def test_every_block_leaves_what_single_tokens_leave(accelerator: str) -> None:
    """All lengths and all numbers of accepted drafts side by side: sequences that differ in nothing else."""
    text, by_length, expected = token_by_token(accelerator)
    ways = {str(number): way for number, way in enumerate(WAYS)}
    planner = Lengths(lambda sequence, _: ways[sequence.request_id][0])
    engine = start(
        model(accelerator),
        planner=planner,
        choose=right_until(text, lambda row: WAYS[row.seed][1]),
        max_num_seqs=len(WAYS),
    )
    for request_id in ways:
        engine.add(request_id, PROMPT, params(int(request_id)))
    records = {}
    compared: set[tuple[str, int]] = set()

    while engine.has_unfinished:
        records |= {record.request_id: record for record in engine.step() if record.finished}
        for sequence in decoding(engine):
            length = sequence.num_computed_tokens
            if (sequence.request_id, length) in compared:
                continue
            compared.add((sequence.request_id, length))
            found = cached(engine, sequence)
            assert found.keys() == by_length[length].keys()
            wrong = [name for name, rows in by_length[length].items() if not torch.equal(found[name], rows)]
            assert wrong == [], f"{ways[sequence.request_id]} drafts verified and accepted, {length} tokens"

    assert all(seen == expected for seen in shown(records).values())
    assert len(compared) > 4 * len(WAYS)
    engine.scheduler.require_all_free()


def test_nothing_is_read_that_no_token_has_written(accelerator: str) -> None:
    """All bytes behind accepted tokens are spoilt after every step: the next one reads none of them."""
    text, _, expected = token_by_token(accelerator)
    ways = {str(number): way for number, way in enumerate(WAYS[::4])}
    engine = start(
        model(accelerator),
        planner=Lengths(lambda sequence, _: ways[sequence.request_id][0]),
        choose=right_until(text, lambda row: WAYS[4 * row.seed][1]),
    )
    for request_id in ways:
        engine.add(request_id, PROMPT, params(int(request_id)))
    records = {}

    while engine.has_unfinished:
        records |= {record.request_id: record for record in engine.step() if record.finished}
        if not engine.scheduler._batcher.waiting:
            driver_of(engine).poison_dead(*map(fed, engine.scheduler._batcher.running))

    assert all(seen == expected for seen in shown(records).values())


def test_a_step_without_new_drafts_leaves_no_trace(accelerator: str) -> None:
    """Rejected rows are overwritten by the next block of drafts; where none is made, by the rows that come later."""
    text, by_length, expected = token_by_token(accelerator)
    steps = iter([True, True, False, False, True, False] * 9)
    engine = start(
        model(accelerator),
        planner=Lengths(lambda _, limit: limit, lambda: next(steps)),
        choose=right_until(text, lambda _: 1),
    )
    engine.add("a", PROMPT, params())

    while engine.has_unfinished:
        records = engine.step()
        for sequence in decoding(engine):
            found = cached(engine, sequence)
            for name, rows in by_length[sequence.num_computed_tokens].items():
                assert torch.equal(found[name], rows), name
    assert shown({"a": records[0]})["a"] == expected
