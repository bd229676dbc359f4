"""Decode steps that are recorded once for each bucket of sizes and replayed (spec engine/09 B9).

A step of any size below a bucket's runs in that bucket's recording: rows that are missing are padding rows of
sequence -1, sequences that are missing have no blocks and the dummy state slot. One upload brings all inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.model.step_inputs import StepInputs
from deepinfer_core.runtime.batch import NO_COMPRESSED_ID, SequenceRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from deepinfer_core.backend.device import CapturedGraph
    from deepinfer_core.model.step_inputs import KVCaches, StepContext
    from deepinfer_core.runtime.model import BoundModel

_PADDING = {"compressed_ids": NO_COMPRESSED_ID, "row_sequence": -1, "ngram_history": NO_COMPRESSED_ID}
"""Values of padding rows and sequences where they are not 0."""
_NO_HISTORY = (NO_COMPRESSED_ID,) * 16
"""At least as long as any n-gram reaches back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sizes of one recording.

    Attributes:
        rows: Query rows.
        sequences: Sequences.
        blocks: Cache blocks of the longest sequence.
    """

    rows: int
    sequences: int
    blocks: int

    @staticmethod
    def of(sequences: Sequence[SequenceRows]) -> Bucket:
        """The smallest bucket that holds a step: rows as :func:`row_sizes` has them, the rest powers of two."""
        rows = sum(len(s.token_ids) for s in sequences)
        longest = max((len(s.blocks) for s in sequences), default=0)
        return Bucket(rows=round_up_rows(rows), sequences=_round_up(len(sequences)), blocks=_round_up(longest))


class StepBuffer:
    """The inputs of one bucket: one int32 buffer on the device, and the views that the graph reads."""

    def __init__(self, bucket: Bucket, lookback: int, device: torch.device) -> None:
        self._shapes = _shapes(bucket, lookback)
        sizes = [rows * width for rows, width in self._shapes.values()]
        self._host = torch.zeros(sum(sizes), dtype=torch.int32)
        self._storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._columns = {name: view.numpy() for name, view in self._views(self._host).items()}
        self._block_table = self._columns.pop("block_table")
        self._history = self._columns.pop("ngram_history")
        self._written = [_Written() for _ in range(bucket.sequences)]
        views: dict[str, Any] = dict(self._views(self._storage))
        self.inputs = StepInputs(**views, host_query_lengths=None, host_context_lengths=None)

    def fill(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """Write a step into the host's copy of the buffer and return it; the caller uploads it."""
        for name, values in _columns(sequences).items():
            column, count = self._columns[name], len(values)
            column[:count] = values
            column[count:] = _PADDING.get(name, 0)
        self._fill_history(sequences)
        for index, written in enumerate(self._written):
            if index < len(sequences):
                sequence = sequences[index]
                written.update(self._block_table[index], sequence.blocks, sequence.owner)
            else:
                written.update(self._block_table[index], (), None)
        return self._host

    def _fill_history(self, sequences: Sequence[SequenceRows]) -> None:
        """Compressed ids before each sequence's rows, padded at the end."""
        lookback = self._history.shape[1]
        if lookback:
            rows = [[*s.ngram_history[:lookback], *_NO_HISTORY[len(s.ngram_history) : lookback]] for s in sequences]
            if rows:
                self._history[: len(rows)] = rows
            self._history[len(rows) :] = NO_COMPRESSED_ID

    def take(self, uploaded: Tensor) -> None:
        """Copy an uploaded step to where the recording reads it."""
        self._storage.copy_(uploaded)

    def _views(self, storage: Tensor) -> dict[str, Tensor]:
        pieces = storage.split([rows * width for rows, width in self._shapes.values()])
        shaped: dict[str, Tensor] = {}
        for (name, (rows, width)), piece in zip(self._shapes.items(), pieces, strict=True):
            shaped[name] = piece.view(rows, width) if name in ("ngram_history", "block_table") else piece
        return shaped


@dataclass(slots=True)
class _Written:
    """What one row of the block table holds. From step to step it grows at its end, if at all: only that is written."""

    owner: object = None
    blocks: list[int] = field(default_factory=list)

    def update(self, row: NDArray[np.int32], blocks: Sequence[int], owner: object) -> None:
        """Bring the row up to date."""
        count = len(self.blocks)
        is_longer = len(blocks) >= count
        if not (is_longer and (owner == self.owner if owner is not None else self.blocks == list(blocks[:count]))):
            row[:count] = 0
            self.blocks, count = [], 0
        self.owner = owner
        if len(blocks) > count:
            more = blocks[count:]
            row[count : len(blocks)] = more
            self.blocks.extend(more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """One bucket's graph; ``latest`` holds the results of the pass that was recorded or, without capture, run last."""

    buffer: StepBuffer
    graph: CapturedGraph
    latest: dict[str, tuple[Tensor, StepContext]]


class CapturedDecode:
    """Decode steps of one model over one set of caches, a recording for each bucket that was met."""

    def __init__(self, model: BoundModel, caches: KVCaches, latest: Tensor, *, drafting: bool = False) -> None:
        """Record nothing yet.

        Args:
            model: The model.
            caches: Written by every step.
            latest: Token sampled last for each state slot, for rows that are pending ``[slots]`` int32.
            drafting: Also store the draft module's context keys.
        """
        self._model = model
        self._caches = caches
        self._latest = latest
        self._drafting = drafting
        self._recordings: dict[Bucket, _Recording] = {}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Buckets that are recorded."""
        return tuple(self._recordings)

    @torch.inference_mode()
    def run(self, sequences: Sequence[SequenceRows]) -> tuple[Tensor, StepContext]:
        """One decode step.

        Args:
            sequences: Rows per sequence, in batch order.

        Returns:
            Hidden rows ``[T, H]`` of the rows given and the step's shared values (padding included); both are
            overwritten by the next step of the same bucket.
        """
        bucket, device = Bucket.of(sequences), self._model.device
        recording = self._recordings.get(bucket) or self._record(bucket)
        recording.buffer.take(device.upload(recording.buffer.fill(sequences)))
        recording.graph.replay()
        hidden, step = recording.latest["step"]
        return hidden[: sum(len(s.token_ids) for s in sequences)], step

    def _record(self, bucket: Bucket) -> _Recording:
        """Run once on padding alone, so that everything is compiled and planned, then record."""
        model = self._model
        buffer = StepBuffer(bucket, model.lookback, model.device.torch_device)
        buffer.take(model.device.upload(buffer.fill(())))
        latest: dict[str, tuple[Tensor, StepContext]] = {}

        def work() -> None:
            step = model.graph.begin(model.feedback.resolve(buffer.inputs, self._latest), self._caches)
            latest["step"] = model.graph.forward(step), step
            if self._drafting:
                model.graph.write_draft_context(step)

        work()
        recording = _Recording(buffer=buffer, graph=model.device.capture(work), latest=latest)
        self._recordings[bucket] = recording
        return recording


def row_sizes() -> Iterator[int]:
    """Rows of recorded steps, ascending without end: powers of two; from 16 on one, from 64 on three between two.

    Drafts fill a step to its size. Where rows cost something, finer sizes let a planner leave out the least likely
    drafts; each size that is met needs a recording.
    """
    size = 1
    while True:
        parts = 1 if size < 16 else 2 if size < 64 else 4
        yield from (size + size * part // parts for part in range(parts))
        size *= 2


def round_up_rows(rows: int) -> int:
    """The smallest recorded size that holds so many rows."""
    return next(size for size in row_sizes() if size >= rows)


def _round_up(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _shapes(bucket: Bucket, lookback: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of every input."""
    rows, sequences = (bucket.rows, 1), (bucket.sequences, 1)
    return {
        "ids": rows,
        "compressed_ids": rows,
        "positions": rows,
        "row_sequence": rows,
        "state_slots": sequences,
        "context_lengths": sequences,
        "query_lengths": sequences,
        "ngram_history": (bucket.sequences, lookback),
        "block_table": (bucket.sequences, bucket.blocks),
    }


def _columns(sequences: Sequence[SequenceRows]) -> dict[str, list[int]]:
    """Inputs with one number for each row or sequence."""
    return {
        "ids": [i for s in sequences for i in s.token_ids],
        "compressed_ids": [i for s in sequences for i in s.compressed_ids],
        "positions": [s.start + i for s in sequences for i in range(len(s.token_ids))],
        "row_sequence": [index for index, s in enumerate(sequences) for _ in s.token_ids],
        "state_slots": [s.state_slot for s in sequences],
        "context_lengths": [s.start + len(s.token_ids) for s in sequences],
        "query_lengths": [len(s.token_ids) for s in sequences],
    }
