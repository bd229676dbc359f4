"""Host integers of a prompt step: which rows the decoder layers run on, and where windows and stores begin."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.errors import InternalError
from deepinfer_core.model.step_inputs import StepInputs
from deepinfer_core.reference.backend import CpuBackend
from deepinfer_core.runtime.batch import SequenceRows, step_inputs

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 10


def chunk(start: int, count: int, total: int = 0, **more: Any) -> SequenceRows:
    """Rows ``start ..`` of a prompt; the token of position p is 100 + p."""
    ids = range(100 + start, 100 + start + count)
    return SequenceRows(
        token_ids=ids, compressed_ids=ids, start=start, ngram_history=(), state_slot=1, blocks=[1], total_length=total,
        **more,
    )  # fmt: skip


def inputs_of(*sequences: SequenceRows, mode: str = "compact", prefill: bool = True) -> StepInputs:
    truncation = PromptTruncation(mode=mode, keep_tokens=KEEP)
    return step_inputs(sequences, prefill=prefill, lookback=2, device=CpuBackend().device(), truncation=truncation)


def values(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else tensor.tolist()


def test_defaults_are_no_limits_at_all() -> None:
    inputs = step_inputs([chunk(0, 5), chunk(3, 2)], prefill=True, lookback=2, device=CpuBackend().device())

    assert inputs.window_start is inputs.store_from is inputs.decoder is None
    assert inputs.returned is inputs
    assert inputs.returned_lengths == (5, 2)
    assert inputs.last_rows == (4, 6)


def test_limits_reach_the_device_where_any_sequence_has_one() -> None:
    inputs = inputs_of(chunk(8, 5, window_start=6, store_from=11), chunk(0, 3), mode="off")

    assert values(inputs.window_start) == [6, 0]
    assert values(inputs.store_from) == [11, 0]
    assert inputs.decoder is None


@pytest.mark.parametrize(
    ("start", "count", "total", "kept"),
    [
        (0, 30, 30, 10),  # the whole prompt
        (0, 12, 30, 1),  # before the kept tokens: one row, to have one
        (0, 20, 30, 1),  # right up to them
        (0, 21, 30, 1),  # one of them
        (15, 10, 30, 5),  # across
        (20, 10, 30, 10),  # all of them
        (24, 3, 30, 3),  # within
        (7, 1, 30, 1),
    ],
)
def test_the_retained_rows_are_the_last_of_the_chunk(start: int, count: int, total: int, kept: int) -> None:
    inputs = inputs_of(chunk(start, count, total))

    assert inputs.decoder is not None
    later = inputs.decoder.inputs
    assert inputs.returned_lengths == later.host_query_lengths == (kept,)
    assert values(later.positions) == list(range(start + count - kept, start + count))
    assert values(later.ids) == [100 + p for p in range(start + count - kept, start + count)]
    assert values(later.window_start) == [total - KEEP]
    assert values(inputs.decoder.rows) == (None if kept == count else list(range(count - kept, count)))
    assert values(inputs.window_start) is None, "the encoder's windows are whole"


def test_sequences_of_one_step_are_cut_each_for_itself() -> None:
    inputs = inputs_of(
        chunk(0, 15, 15, all_rows=True), chunk(5, 20, 40), chunk(0, 4, 4), chunk(16, 14, 30, window_start=16)
    )

    assert inputs.decoder is not None
    assert inputs.returned_lengths == (15, 1, 4, 10)
    assert inputs.last_rows == (14, 15, 19, 29)
    assert values(inputs.decoder.rows) == [*range(15), 34, *range(35, 39), *range(43, 53)]
    assert values(inputs.window_start) == [0, 0, 0, 16]
    assert values(inputs.decoder.inputs.window_start) == [0, 30, 0, 20]
    assert values(inputs.decoder.inputs.row_sequence) == [0] * 15 + [1] + [2] * 4 + [3] * 10
    assert inputs.decoder.inputs.host_context_lengths == (15, 25, 4, 30)


def test_mask_retains_every_row() -> None:
    inputs = inputs_of(chunk(0, 12, 30), mode="mask")

    assert inputs.decoder is not None
    assert inputs.decoder.rows is None
    assert inputs.decoder.inputs.positions is inputs.positions
    assert inputs.returned_lengths == (12,)
    assert values(inputs.decoder.inputs.window_start) == [20]


@pytest.mark.parametrize("total", [30, 9, 10])
def test_nothing_is_truncated_that_need_not_be(total: int) -> None:
    """A short prompt, one whose every row is needed, one that is replayed from behind the first kept token."""
    needed = {9: chunk(0, 9, 9), 10: chunk(0, 10, 10), 30: chunk(22, 8, 30, window_start=22)}

    assert inputs_of(needed[total]).decoder is None
    assert inputs_of(chunk(0, 30, 30, all_rows=True)).decoder is None


def test_decode_steps_know_no_truncation() -> None:
    inputs = inputs_of(chunk(30, 1, 31, window_start=16, store_from=24), prefill=False)

    assert inputs.decoder is inputs.window_start is inputs.store_from is None
    with pytest.raises(InternalError, match="prefill steps only"):
        _ = inputs.last_rows


def test_contradictions_are_found() -> None:
    with pytest.raises(InternalError, match="a window from 9 in a chunk from 8"):
        inputs_of(chunk(8, 4, 30, window_start=9))
    with pytest.raises(InternalError, match="ends at 12 of a truncated prompt of 11 tokens"):
        inputs_of(chunk(8, 4, 11))


def test_any_cut_of_a_prompt_retains_the_same_kept_rows() -> None:
    chance = random.Random(0)
    for _ in range(50):
        total, at, seen = chance.randint(1, 60), 0, []
        while at < total:
            count = min(chance.randint(1, 25), total - at)
            later = inputs_of(chunk(at, count, total)).returned
            seen += [p for p in later.positions.tolist() if p >= total - KEEP]
            at += count
        assert seen == list(range(max(total - KEEP, 0), total))


def test_no_truncation_is_off() -> None:
    assert not NO_TRUNCATION.is_on
