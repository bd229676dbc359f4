"""Drafts behind a step: one pass of the draft module, and a token of each of its rows in turn (spec dspark 1.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch

from deepinfer_core.errors import InternalError
from deepinfer_core.model.draft import DraftInputs
from deepinfer_core.runtime import sampling_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import CapturedGraph
    from deepinfer_core.config.speculation import DraftSettings
    from deepinfer_core.model.draft import DraftModule
    from deepinfer_core.model.step_inputs import KVCaches
    from deepinfer_core.runtime.drafting_ops import DraftingOps
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.sampling_tensors import SamplingRow

DUMMY_SLOT = 0
_ROWS_OF_A_DRAW = 3
"""Rows of the vocabulary for each sequence while a draft is drawn: its logits, corrected ones, log-probabilities."""


@dataclass(frozen=True, slots=True)
class DraftedBlocks:
    """Drafts of some sequences, on the device.

    Attributes:
        token_ids: ``[B, n]`` int32; -1 where the draft's logits define no distribution.
        confidence: Estimated chance of each that it is accepted when all before it are ``[B, n]`` f32.
        confidence_logits: The same before calibration and sigmoid ``[B, n]`` f32.
    """

    token_ids: Tensor
    confidence: Tensor
    confidence_logits: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_ids, self.confidence, self.confidence_logits


@dataclass(frozen=True, slots=True)
class _Filters:
    """Which stages of sampling a pass runs; a recording is made for each combination that was met."""

    is_drawn: bool
    top_k: bool
    top_p: bool
    min_p: bool

    @staticmethod
    def of(rows: Sequence[SamplingRow]) -> _Filters:
        drawn = [row.params for row in rows if row.params.temperature > 0]
        return _Filters(
            is_drawn=bool(drawn),
            top_k=any(params.top_k > 0 for params in drawn),
            top_p=any(params.top_p < 1 for params in drawn),
            min_p=any(params.min_p > 0 for params in drawn),
        )


class _PassBuffer:
    """Inputs of a pass over ``B`` sequences, of which the last ones may be missing."""

    def __init__(self, size: int, block: int, noise: int, device: torch.device) -> None:
        self.size, self.block = size, block
        self.ids = torch.full((size, block), noise, dtype=torch.int32, device=device)
        self.anchors = torch.zeros(size, dtype=torch.int32, device=device)
        self.integers = torch.zeros((2 + block) * size, dtype=torch.int32, device=device)
        self.reals = torch.zeros(3 * size, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(size, dtype=torch.int64, device=device)
        self.steps = torch.arange(block, dtype=torch.int32, device=device)

    @property
    def inputs(self) -> DraftInputs:
        """Rows of the block behind each anchor."""
        slots, _, rows = self._integers()
        positions = (self.anchors.unsqueeze(-1) + self.steps).flatten()
        return DraftInputs(ids=self.ids.flatten(), positions=positions, row_sequence=rows, state_slots=slots)

    @property
    def slots(self) -> Tensor:
        return self._integers()[0]

    def filters(self, wanted: _Filters) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Temperature, top-k, top-p and min-p of each sequence."""
        temperature, top_p, min_p = self.reals.split(self.size)
        top_k = self._integers()[1]
        return (
            temperature,
            top_k if wanted.top_k else None,
            top_p if wanted.top_p else None,
            min_p if wanted.min_p else None,
        )

    def _integers(self) -> tuple[Tensor, Tensor, Tensor]:
        """State slot and top-k of each sequence, and the sequence of each row."""
        slots, top_k, rows = self.integers.split([self.size, self.size, self.size * self.block])
        return slots, top_k, rows


@dataclass(frozen=True, slots=True)
class _Recording:
    buffer: _PassBuffer
    graph: CapturedGraph
    drafted: DraftedBlocks


class Drafter:
    """Makes drafts for one model over one set of caches.

    Where rejection sampling judges the drafts, it keeps the distribution that each was drawn from, by state slot:
    ``[slots, n, V]`` f32.
    """

    def __init__(self, model: BoundModel, caches: KVCaches) -> None:
        """Record nothing yet.

        Args:
            model: Bound with settings for drafts.
            caches: Its draft rings hold the context of every sequence.
        """
        module, ops, draft = model.graph.draft, model.drafting, model.architecture.draft
        if module is None or ops is None or draft is None:
            raise InternalError("a model that was bound without drafts was asked for them")
        self._model, self._caches = model, caches
        self._module: DraftModule = module
        self._ops: DraftingOps = ops
        self._block, self._noise = draft.block_size, draft.noise_token_id
        self._recordings: dict[tuple[int, _Filters], _Recording] = {}
        self._distributions: Tensor | None = None
        if not self._ops.settings.is_coupled:
            shape = distribution_shape(model, caches.slot_pool.shape[0])
            self._distributions = torch.zeros(shape, dtype=torch.float32, device=model.device.torch_device)

    @property
    def settings(self) -> DraftSettings:
        """What was asked of it."""
        return self._ops.settings

    @property
    def num_drafts(self) -> int:
        """Drafts of each sequence."""
        return self.settings.num_drafts

    def distributions(self, slots: Sequence[int], indices: Sequence[int]) -> Tensor | None:
        """Log-probabilities ``[R, V]`` that drafts were drawn from; None where drafts are coupled.

        Args:
            slots: State slot of the sequence of each row; the dummy slot for rows without a draft.
            indices: Number of its draft.
        """
        if self._distributions is None:
            return None
        flat = [slot * self.num_drafts + index for slot, index in zip(slots, indices, strict=True)]
        rows = self._model.device.upload(torch.tensor(flat, dtype=torch.int64))
        return self._distributions.flatten(0, 1).index_select(0, rows)

    @torch.inference_mode()
    def propose(
        self, token_ids: Tensor, positions: Tensor, slots: Sequence[int], rows: Sequence[SamplingRow]
    ) -> DraftedBlocks:
        """Make drafts behind the last token of each sequence, whose features are in the draft rings.

        Args:
            token_ids: The tokens ``[B]`` int32; -1 counts as 0, for sequences that have failed.
            positions: Their positions ``[B]`` int32.
            slots: State slots of the sequences.
            rows: What each asks of the sampler.
        """
        filters = _Filters.of(rows)
        if not self._model.captures_graphs:
            buffer = self._buffer(len(slots))
            self._fill(buffer, token_ids, positions, slots, rows)
            return self._pass(buffer, filters)
        recording = self._recording(1 << max(len(slots) - 1, 0).bit_length(), filters)
        self._fill(recording.buffer, token_ids, positions, slots, rows)
        recording.graph.replay()
        count = len(slots)
        return DraftedBlocks(*(tensor[:count] for tensor in recording.drafted.tensors))

    def _recording(self, size: int, filters: _Filters) -> _Recording:
        """The recording for so many sequences; made on padding alone where there is none."""
        found = self._recordings.get((size, filters))
        if found is not None:
            return found
        buffer = self._buffer(size)
        buffer.integers[2 * size :].fill_(-1)
        results: list[DraftedBlocks] = []

        def work() -> None:
            results[:] = [self._pass(buffer, filters)]

        work()
        graph = self._model.device.capture(work)
        recording = self._recordings[size, filters] = _Recording(buffer, graph, results[0])
        return recording

    def _buffer(self, size: int) -> _PassBuffer:
        return _PassBuffer(size, self._block, self._noise, self._model.device.torch_device)

    def _fill(
        self,
        buffer: _PassBuffer,
        token_ids: Tensor,
        positions: Tensor,
        slots: Sequence[int],
        rows: Sequence[SamplingRow],
    ) -> None:
        """Write a pass: what the device knows by copies there, what the host knows by uploads."""
        upload, count = self._model.device.upload, len(slots)
        missing = buffer.size - count
        buffer.ids[:count, 0] = token_ids.clamp(min=0)
        buffer.anchors[:count] = positions
        top_k = [max(row.params.top_k, 0) for row in rows]
        numbers = [index for index in range(count) for _ in range(buffer.block)]
        integers = [*slots, *[DUMMY_SLOT] * missing, *top_k, *[0] * missing, *numbers]
        integers += [-1] * (missing * buffer.block)
        reals = [[row.params.temperature for row in rows], [row.params.top_p for row in rows]]
        reals.append([row.params.min_p for row in rows])
        padded = [value for column in reals for value in (*column, *[0.0] * missing)]
        buffer.integers.copy_(upload(torch.tensor(integers, dtype=torch.int32)))
        buffer.reals.copy_(upload(torch.tensor(padded, dtype=torch.float32)))
        buffer.seeds[:count] = upload(sampling_tensors.seeds(rows))

    def _pass(self, buffer: _PassBuffer, filters: _Filters) -> DraftedBlocks:
        """The draft module's rows, then row by row: each drafted token sets the Markov correction of the next."""
        rows = self._module.forward(buffer.inputs, self._caches.draft_window)
        shape = (buffer.size, buffer.block)
        base, hidden = rows.base_logits.unflatten(0, shape), rows.hidden.unflatten(0, shape)
        previous = buffer.ids[:, 0].contiguous()
        drafted: list[tuple[Tensor, Tensor, Tensor]] = []
        for index in range(self.num_drafts):
            logit, confidence = self._module.confidence(hidden[:, index], previous, index)
            scores = self._module.correct(base[:, index], previous).float()
            token = self._draw(index, scores, buffer, filters)
            previous = token.clamp(min=0)
            drafted.append((token, confidence, logit))
        return DraftedBlocks(*(torch.stack(columns, 1) for columns in zip(*drafted, strict=True)))

    def _draw(self, index: int, scores: Tensor, buffer: _PassBuffer, filters: _Filters) -> Tensor:
        """A token of each row, as its request samples; what it was drawn from is kept where that is needed."""
        sampler = self._model.sampler
        if not filters.is_drawn:
            return sampler.greedy(scores)
        logprobs = sampler.process_logits(scores, *buffer.filters(filters))
        if self._distributions is not None:
            self._distributions[:, index].index_copy_(0, buffer.slots.long(), logprobs)
        positions = buffer.anchors + self._ops.draw_offset(index)
        return self._ops.samples[index](logprobs, buffer.seeds, positions)


def distribution_shape(model: BoundModel, num_slots: int) -> tuple[int, int, int]:
    """Shape of what a drafter keeps for rejection sampling, all f32; nothing where drafts are coupled.

    Args:
        model: Bound with settings for drafts.
        num_slots: State slots, the dummy included.
    """
    ops = model.drafting
    if ops is None or ops.settings.is_coupled:
        return (0, 0, 0)
    return (num_slots, ops.settings.num_drafts, model.architecture.vocab_size)


def drafting_bytes(model: BoundModel, num_slots: int, num_sequences: int) -> int:
    """Device memory of drafting: distributions that are kept, and rows of the vocabulary of the largest pass.

    Args:
        model: Any; without settings for drafts it takes nothing.
        num_slots: State slots, the dummy included.
        num_sequences: Sequences of a step at most.
    """
    draft = model.architecture.draft
    if model.drafting is None or draft is None:
        return 0
    rows = (draft.block_size + _ROWS_OF_A_DRAW) * (1 << max(num_sequences - 1, 0).bit_length())
    return 4 * (prod(distribution_shape(model, num_slots)) + rows * model.architecture.vocab_size)
