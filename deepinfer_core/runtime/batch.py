"""Integers of a planned step -> the named tensors that the graph reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.errors import require
from deepinfer_core.model.step_inputs import DecoderInputs, StepInputs

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import Device

NO_COMPRESSED_ID = -1
"""Fills the history before the start of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """The rows of one sequence in a step.

    Attributes:
        token_ids: Tokens to process now; ``PENDING`` stands for the one that was sampled last for the state slot.
        compressed_ids: Their compressed ids.
        start: Absolute position of the first one.
        ngram_history: Compressed ids before the first one, latest first, at most ``max_ngram - 1``.
        state_slot: The sequence's state slot.
        blocks: The sequence's cache blocks in order; they hold ``start + len(token_ids)`` tokens at least.
        window_start: First position that has window keys, at most ``start``; above 0 where a cached prefix is
            replayed from there without the windows before (spec attention/05 B). Prompt chunks only.
        store_from: Entries that close before this position are cached already and stay as they are. Prompt chunks
            only: rows of a decode step are never before it.
        total_length: Tokens of the whole prompt, after a preemption with what was generated before; needed where
            prompts are truncated.
        owner: Tells two holders of blocks apart: the blocks of one owner only grow at their end. None: unknown.
        all_rows: The whole prompt's hidden rows are needed (logprobs of prompt tokens): it is not truncated.
    """

    token_ids: Sequence[int]
    compressed_ids: Sequence[int]
    start: int
    ngram_history: Sequence[int]
    state_slot: int
    blocks: Sequence[int]
    window_start: int = 0
    store_from: int = 0
    total_length: int = 0
    owner: object = None
    all_rows: bool = False

    @property
    def end(self) -> int:
        """Absolute position behind the last row."""
        return self.start + len(self.token_ids)


def step_inputs(
    sequences: Sequence[SequenceRows],
    *,
    prefill: bool,
    lookback: int,
    device: Device,
    truncation: PromptTruncation = NO_TRUNCATION,
) -> StepInputs:
    """The tensors of one step, on the device.

    Args:
        sequences: Rows per sequence, in batch order.
        prefill: True for prompt chunks: lengths are then also kept on the host.
        lookback: ``max_ngram - 1``, or 0 for models without n-gram memory.
        device: Where the step runs.
        truncation: How much of prompts the decoder layers see; decode steps are not concerned.
    """
    width = max((len(s.blocks) for s in sequences), default=0)
    history = [
        [*s.ngram_history[:lookback], *[NO_COMPRESSED_ID] * (lookback - len(s.ngram_history))] for s in sequences
    ]
    tables = [[*s.blocks, *[0] * (width - len(s.blocks))] for s in sequences]
    contexts = [s.end for s in sequences]
    inputs = StepInputs(
        **_row_columns(sequences, device),
        state_slots=device.upload(int32_row([s.state_slot for s in sequences])),
        context_lengths=device.upload(int32_row(contexts)),
        ngram_history=device.upload(int32_row(history).reshape(len(sequences), lookback)),
        block_table=device.upload(int32_row(tables).reshape(len(sequences), width)),
        host_query_lengths=tuple(len(s.token_ids) for s in sequences) if prefill else None,
        host_context_lengths=tuple(contexts) if prefill else None,
    )
    return _with_limits(inputs, sequences, truncation, device) if prefill else inputs


def _with_limits(
    inputs: StepInputs, sequences: Sequence[SequenceRows], truncation: PromptTruncation, device: Device
) -> StepInputs:
    """Where windows and stores of prompt rows begin, and which rows the decoder layers run on."""
    for s in sequences:
        require(0 <= s.window_start <= s.start, f"a window from {s.window_start} in a chunk from {s.start}")
    starts = [s.window_start for s in sequences]
    stores = [s.store_from for s in sequences]
    inputs = replace(inputs, window_start=_limits(starts, device), store_from=_limits(stores, device))
    floors = [max(s.window_start, _first_kept(s, truncation)) for s in sequences]
    if floors == starts:
        return inputs
    decoder = replace(inputs, window_start=_limits(floors, device))
    skipped = [max(min(floor - s.start, len(s.token_ids) - 1), 0) for s, floor in zip(sequences, floors, strict=True)]
    if truncation.mode == "mask" or not any(skipped):
        return replace(inputs, decoder=DecoderInputs(inputs=decoder, rows=None))
    retained = [_without_first(s, count) for s, count in zip(sequences, skipped, strict=True)]
    decoder = replace(
        decoder,
        **_row_columns(retained, device),
        host_query_lengths=tuple(len(s.token_ids) for s in retained),
    )
    return replace(inputs, decoder=DecoderInputs(inputs=decoder, rows=_rows_behind(sequences, skipped, device)))


def _first_kept(sequence: SequenceRows, truncation: PromptTruncation) -> int:
    if not truncation.is_on or sequence.all_rows:
        return 0
    require(
        sequence.total_length >= sequence.end,
        f"a chunk that ends at {sequence.end} of a truncated prompt of {sequence.total_length} tokens",
    )
    return truncation.first_kept(sequence.total_length)


def _without_first(sequence: SequenceRows, count: int) -> SequenceRows:
    """The last rows of a chunk."""
    return replace(
        sequence,
        token_ids=sequence.token_ids[count:],
        compressed_ids=sequence.compressed_ids[count:],
        start=sequence.start + count,
    )


def _rows_behind(sequences: Sequence[SequenceRows], skipped: Sequence[int], device: Device) -> Tensor:
    """Numbers of all rows but the first ``skipped`` of each sequence."""
    rows: list[int] = []
    first = 0
    for sequence, count in zip(sequences, skipped, strict=True):
        rows += range(first + count, first + len(sequence.token_ids))
        first += len(sequence.token_ids)
    return device.upload(int32_row(rows))


def _row_columns(sequences: Sequence[SequenceRows], device: Device) -> dict[str, Any]:
    """Inputs with a number for each row, and the lengths that say whose rows they are."""
    columns = {
        "ids": [i for s in sequences for i in s.token_ids],
        "compressed_ids": [i for s in sequences for i in s.compressed_ids],
        "positions": [p for s in sequences for p in range(s.start, s.end)],
        "row_sequence": [index for index, s in enumerate(sequences) for _ in s.token_ids],
        "query_lengths": [len(s.token_ids) for s in sequences],
    }
    return {name: device.upload(int32_row(values)) for name, values in columns.items()}


def _limits(positions: Sequence[int], device: Device) -> Tensor | None:
    """A position for each sequence, or None where there is no limit anywhere."""
    return device.upload(int32_row(positions)) if any(positions) else None


def int32_row(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Host integers as an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)
