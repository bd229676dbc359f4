"""Decode steps through recordings give what the executor gives, whatever bucket they fall into."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.captured import Bucket, CapturedDecode, StepBuffer
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.runtime.model import BoundModel

NO_TOKENS = torch.zeros(6, dtype=torch.int32)
TOKENS = [5 + (place * 7) % 900 for place in range(200)]


@pytest.fixture(scope="module")
def model() -> BoundModel:
    return open_model("tiny", accelerator="cpu", numerics="f32").model


def _rows(model: BoundModel, number: int, start: int, stop: int) -> SequenceRows:
    compressed = [model.compressed_map[token] for token in TOKENS]
    return SequenceRows(
        token_ids=TOKENS[start:stop],
        compressed_ids=compressed[start:stop],
        start=start,
        ngram_history=list(reversed(compressed[max(start - model.lookback, 0) : start])),
        state_slot=1 + number,
        blocks=[1 + 2 * number, 2 + 2 * number],
    )


def test_a_bucket_rounds_every_size_up_to_a_power_of_two(model: BoundModel) -> None:
    steps = [_rows(model, number, 10, 11) for number in range(5)]

    assert Bucket.of(steps) == Bucket(rows=8, sequences=8, blocks=2)


@pytest.mark.parametrize("lengths", [(37,), (37, 130, 9), (130, 64, 9, 37)])
def test_recorded_steps_give_the_rows_of_the_executor(model: BoundModel, lengths: tuple[int, ...]) -> None:
    plain, recorded = (Executor(model, model.allocate(10, 5)) for _ in range(2))
    decode = CapturedDecode(model, recorded.caches, NO_TOKENS)
    for number, length in enumerate(lengths):
        for executor in (plain, recorded):
            executor.run([_rows(model, number, 0, length)], prefill=True)

    for step in range(3):
        rows = [_rows(model, number, length + step, length + step + 1) for number, length in enumerate(lengths)]
        wanted, _ = plain.run(rows, prefill=False)
        found, _ = decode.run(rows)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)

    assert len(decode.buckets) == 1


def test_padding_writes_into_no_cache_of_a_sequence(model: BoundModel) -> None:
    executor = Executor(model, model.allocate(10, 5))
    executor.run([_rows(model, 0, 0, 40)], prefill=True)
    others = executor.caches.block_pool[3:].clone(), executor.caches.slot_pool[2:].clone()

    CapturedDecode(model, executor.caches, NO_TOKENS).run([_rows(model, 0, 40, 43)])

    assert torch.equal(others[0], executor.caches.block_pool[3:])
    assert torch.equal(others[1], executor.caches.slot_pool[2:])


def test_the_block_table_follows_sequences_that_grow_shrink_and_change_places() -> None:
    def rows(*blocks: int) -> SequenceRows:
        return SequenceRows(
            token_ids=[1], compressed_ids=[1], start=0, ngram_history=[], state_slot=1, blocks=list(blocks)
        )

    buffer = StepBuffer(Bucket(rows=2, sequences=2, blocks=4), 0, torch.device("cpu"))
    steps = [(rows(3), rows(5, 6)), (rows(3, 7), rows(5, 6)), (rows(5, 6), rows(3, 7)), (rows(9),), (rows(5),)]

    for step in steps:
        buffer.take(buffer.fill(step))
        wanted = [[*sequence.blocks, *[0] * (4 - len(sequence.blocks))] for sequence in step]
        wanted += [[0] * 4] * (2 - len(step))
        assert buffer.inputs.block_table.tolist() == wanted
