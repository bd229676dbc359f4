"""From the hidden rows of a launched step to its tokens, and to the drafts behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from deepinfer_core.runtime.batch import int32_row
from deepinfer_core.runtime.drafter import DUMMY_SLOT
from deepinfer_core.runtime.sampled_rows import SampledRows
from deepinfer_core.runtime.sampler import Judge, most_alternatives
from deepinfer_core.runtime.sampling_tensors import NO_DRAFT

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.engine.launched_step import LaunchedStep
    from deepinfer_core.engine.request import Request
    from deepinfer_core.runtime.drafter import Drafter
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.sampling_tensors import SamplingRow
    from deepinfer_core.scheduler.step_plan import SequencePlan

ROWS_AT_ONCE = 256
"""Bounds the memory for rows of the vocabulary; a block of drafts is never split."""


class StepSampler:
    """Launches the sampling of steps; waits for nothing."""

    def __init__(self, model: BoundModel, logits: Callable[[Tensor], Tensor], drafter: Drafter | None) -> None:
        """Take what makes logits and drafts.

        Args:
            model: The model.
            logits: Vocabulary logits of hidden rows.
            drafter: Makes drafts where a plan asks for them; None without speculative decoding.
        """
        self._model, self._logits, self._drafter = model, logits, drafter

    def sample(self, launched: LaunchedStep, requests: Mapping[str, Request]) -> Tensor | None:
        """Launch the sampling of a step, with all that the requests have generated before it.

        Args:
            launched: A step whose forward pass was launched; gets its tokens.
            requests: By id; those that have ended may be missing.

        Returns:
            The last token of each of ``launched.sampled`` ``[B]``, -1 where that failed; None when all have ended.
        """
        entries = launched.plan.sampling_entries
        alive = [number for number, entry in enumerate(entries) if not entry.sequence.is_finished]
        launched.sampled = tuple(entries[number] for number in alive)
        if not alive:
            return None
        hidden = launched.hidden if len(alive) == len(entries) else self._rows_of(launched.hidden, entries, alive)
        blocks = [_rows(entry, requests[entry.sequence.request_id]) for entry in launched.sampled]
        launched.rows = [row for block in blocks for row in block]
        sampled = self._sample(hidden, launched)
        launched.download = self._model.device.download(sampled.tensors)
        launched.mark()
        if self._drafter is None:
            return sampled.token_ids
        num_accepted, last_rows = self._count_accepted(sampled, launched.sampled)
        tokens = sampled.token_ids[last_rows]
        drafted = self._propose(tokens, last_rows, launched) if launched.plan.proposes else ()
        launched.drafts_download = self._model.device.download((num_accepted, *drafted))
        launched.mark()
        return tokens

    def _sample(self, hidden: Tensor, launched: LaunchedStep) -> SampledRows:
        """Tokens of all rows, some blocks at a time."""
        wanted = most_alternatives(launched.rows)
        slots = [entry.sequence.state_slot for entry in launched.sampled for _ in range(entry.num_sampled_rows)]
        parts: list[SampledRows] = []
        for begin, end in pairwise(_pieces([entry.num_sampled_rows for entry in launched.sampled])):
            rows = launched.rows[begin:end]
            logits = self._logits(hidden[begin:end]).float()
            judge = self._judge(rows, slots[begin:end])
            parts.append(self._model.sampler(logits, rows, judge=judge, num_alternatives=wanted))
        return SampledRows.join(parts)

    def _judge(self, rows: Sequence[SamplingRow], slots: Sequence[int]) -> Judge | None:
        """Rejection sampling for these rows; None where no drawn draft is among them, or drafts are coupled."""
        ops = self._model.drafting
        is_drawn = any(row.draft != NO_DRAFT and row.params.temperature > 0 for row in rows)
        if self._drafter is None or ops is None or ops.verify is None or not is_drawn:
            return None
        is_judged = [row.draft != NO_DRAFT for row in rows]
        distributions = self._drafter.distributions(
            [slot if judged else DUMMY_SLOT for slot, judged in zip(slots, is_judged, strict=True)],
            [len(row.assumed) if judged else 0 for row, judged in zip(rows, is_judged, strict=True)],
        )
        return None if distributions is None else Judge(ops.verify, distributions)

    def _count_accepted(self, sampled: SampledRows, entries: Sequence[SequencePlan]) -> tuple[Tensor, Tensor]:
        """Accepted drafts of each entry, and the row that yields its last token."""
        upload, ops = self._model.device.upload, self._model.drafting
        *first_rows, num_rows = _ends(entries)
        first = upload(int32_row(first_rows))
        if sampled.accepted is None or ops is None:
            return torch.zeros_like(first), first
        counts = [len(entry.draft_token_ids) for entry in entries]
        places = [
            [begin + place if place < count else num_rows for place in range(max(counts))]
            for begin, count in zip(first_rows, counts, strict=True)
        ]
        flags = torch.cat((sampled.accepted, sampled.accepted.new_zeros(1)))
        return ops.accept_prefix(flags[upload(int32_row(places))], first)

    def _propose(self, tokens: Tensor, last_rows: Tensor, launched: LaunchedStep) -> tuple[Tensor, ...]:
        """New drafts behind the last token of each entry."""
        if self._drafter is None:
            return ()
        positions = self._model.device.upload(int32_row([row.position for row in launched.rows]))[last_rows]
        slots = [entry.sequence.state_slot for entry in launched.sampled]
        rows = [row for row in launched.rows if not row.assumed]
        return self._drafter.propose(tokens, positions, slots, rows).tensors

    def _rows_of(self, hidden: Tensor, entries: Sequence[SequencePlan], alive: Sequence[int]) -> Tensor:
        """Hidden rows of some entries."""
        ends = _ends(entries)
        rows = [row for number in alive for row in range(ends[number], ends[number + 1])]
        return hidden[self._model.device.upload(int32_row(rows))]


def _ends(entries: Sequence[SequencePlan]) -> list[int]:
    """Where the rows of each entry begin, and at last where those of the last one end."""
    return [0, *accumulate(entry.num_sampled_rows for entry in entries)]


def _rows(entry: SequencePlan, request: Request) -> list[SamplingRow]:
    return request.sampling_rows(entry.sequence.index, entry.draft_token_ids)


def _pieces(lengths: Sequence[int]) -> list[int]:
    """Ends of pieces of whole blocks, as many rows each as are sampled at once; the first is 0."""
    ends = [0]
    end = 0
    for length in lengths:
        if end + length - ends[-1] > ROWS_AT_ONCE and end > ends[-1]:
            ends.append(end)
        end += length
    return [*ends, end]
