"""Integers of a planned step -> the named tensors that the graph reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deepinfer_core.model.step_inputs import StepInputs

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import Device

NO_COMPRESSED_ID = -1
"""Fills the history before the start of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """The rows of one sequence in a step.

    Attributes:
        token_ids: Tokens to process now.
        compressed_ids: Their compressed ids.
        start: Absolute position of the first one.
        ngram_history: Compressed ids before the first one, latest first, at most ``max_ngram - 1``.
        state_slot: The sequence's state slot.
        blocks: The sequence's cache blocks in order; they hold ``start + len(token_ids)`` tokens at least.
    """

    token_ids: Sequence[int]
    compressed_ids: Sequence[int]
    start: int
    ngram_history: Sequence[int]
    state_slot: int
    blocks: Sequence[int]


def step_inputs(sequences: Sequence[SequenceRows], *, prefill: bool, lookback: int, device: Device) -> StepInputs:
    """The tensors of one step, on the device.

    Args:
        sequences: Rows per sequence, in batch order.
        prefill: True for prompt chunks: lengths are then also kept on the host.
        lookback: ``max_ngram - 1``, or 0 for models without n-gram memory.
        device: Where the step runs.
    """
    lengths = [len(s.token_ids) for s in sequences]
    contexts = [s.start + len(s.token_ids) for s in sequences]
    width = max((len(s.blocks) for s in sequences), default=0)
    columns = {
        "ids": [i for s in sequences for i in s.token_ids],
        "compressed_ids": [i for s in sequences for i in s.compressed_ids],
        "positions": [p for s, c in zip(sequences, contexts, strict=True) for p in range(s.start, c)],
        "row_sequence": [index for index, length in enumerate(lengths) for _ in range(length)],
        "state_slots": [s.state_slot for s in sequences],
        "context_lengths": contexts,
        "query_lengths": lengths,
    }
    history = [
        [*s.ngram_history[:lookback], *[NO_COMPRESSED_ID] * (lookback - len(s.ngram_history))] for s in sequences
    ]
    tables = [[*s.blocks, *[0] * (width - len(s.blocks))] for s in sequences]
    return StepInputs(
        **{name: device.upload(int32_row(values)) for name, values in columns.items()},
        ngram_history=device.upload(int32_row(history).reshape(len(sequences), lookback)),
        block_table=device.upload(int32_row(tables).reshape(len(sequences), width)),
        host_query_lengths=tuple(lengths) if prefill else None,
        host_context_lengths=tuple(contexts) if prefill else None,
    )


def int32_row(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Host integers as an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)
