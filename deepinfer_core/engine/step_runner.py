"""From a planned step to the tokens it yields: inputs, forward pass, sampling, and the way to the host.

Nothing here waits for the device but :class:`LaunchedStep` when it is asked for tokens, so that one step can be
prepared while another runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch

from deepinfer_core.backend.device import make_timer
from deepinfer_core.engine.launched_step import LaunchedStep, PendingScores
from deepinfer_core.engine.step_sampler import StepSampler
from deepinfer_core.ops.embedding.pending_tokens import PENDING
from deepinfer_core.runtime.batch import NO_COMPRESSED_ID, SequenceRows, int32_row

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.engine.logprobs import PromptScores
    from deepinfer_core.engine.request import Request
    from deepinfer_core.runtime.cache_transfer import CacheTransfer
    from deepinfer_core.runtime.drafter import Drafter
    from deepinfer_core.runtime.executor import HiddenRows
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.scheduler.step_plan import SequencePlan, StepPlan

_ROWS_SCORED_AT_ONCE = 256
"""Bounds the memory for logits of a long prompt whose log-probabilities are asked for."""


class StepExecutor(Protocol):
    """What runs the model; :class:`~deepinfer_core.runtime.executor.Executor` in earnest."""

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:
        """One forward pass; returns hidden rows of every sequence, its last one among them."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of hidden rows."""
        ...

    def remember(self, token_ids: Tensor, slots: Sequence[int]) -> None:
        """Keep sampled tokens for rows of these state slots that are pending in the next step."""
        ...

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole state slots, ``(source, destination)``."""
        ...


class StepRunner:
    """Launches planned steps of one model; knows requests only as what they ask.

    An exception concerns the whole step. Where every op is native, waiting for the device inside a launch is one: it
    would cost what overlap wins. References may wait.
    """

    def __init__(
        self,
        model: BoundModel,
        executor: StepExecutor,
        transfer: CacheTransfer,
        *,
        feeds_back: bool,
        drafter: Drafter | None = None,
    ) -> None:
        """Take what runs the model.

        Args:
            model: The model.
            executor: Runs it over its caches.
            transfer: Writes to these caches what was kept elsewhere.
            feeds_back: Sampled tokens are kept on the device for a step that is launched before the host knows them.
            drafter: Makes drafts; None without speculative decoding.
        """
        self._model = model
        self._executor = executor
        self._transfer = transfer
        self._feeds_back = feeds_back
        self._is_timed = drafter is not None
        self._sampler = StepSampler(model, executor.logits, drafter)
        self._without_waiting: Callable[[], AbstractContextManager[None]] = (
            nullcontext if model.report.counts["reference"] else model.device.no_sync
        )

    def launch(self, plan: StepPlan, requests: Mapping[str, Request]) -> LaunchedStep:
        """Launch the forward passes of a step, and the scores of its prompts.

        Args:
            plan: What to run.
            requests: By id; all of the plan are there.
        """
        with self._without_waiting():
            chosen: list[Tensor] = []
            timer = make_timer(self._model.device) if self._is_timed else None
            launched = LaunchedStep(plan=plan, hidden=torch.empty(0), timer=timer)
            self._transfer.write(plan.loads)
            self._executor.copy_slots(plan.restores)
            launched.mark()
            for entries, is_prefill in ((plan.decodes, False), (plan.prefills, True)):
                if entries:
                    rows = [self._rows(entry, requests[entry.sequence.request_id]) for entry in entries]
                    hidden = self._executor.forward(rows, prefill=is_prefill)
                    chosen.append(self._sampled_rows(hidden, entries))
                    launched.num_padded_rows += hidden.num_padded
                    if is_prefill:
                        launched.scores = self._score_prompts(hidden, entries, requests)
            self._executor.copy_slots(plan.snapshots)
            launched.hidden = chosen[0] if len(chosen) == 1 else torch.cat(chosen)
        return launched

    def sample(self, launched: LaunchedStep, requests: Mapping[str, Request]) -> None:
        """Launch the sampling of a step, with all that the requests have generated before it.

        Args:
            launched: From :meth:`launch`; gets its tokens.
            requests: By id; those that have ended may be missing.
        """
        with self._without_waiting():
            tokens = self._sampler.sample(launched, requests)
            if self._feeds_back and tokens is not None:
                self._executor.remember(tokens, [e.sequence.state_slot or -1 for e in launched.sampled])

    def _rows(self, entry: SequencePlan, request: Request) -> SequenceRows:
        """Integers of one sequence in a step."""
        sequence, lookback = entry.sequence, self._model.lookback
        compressed = self._model.compressed_map
        ids = [PENDING] if entry.is_pending else [*entry.token_ids, *entry.draft_token_ids]
        before = sequence.token_ids[max(entry.start - lookback, 0) : entry.start]
        return SequenceRows(
            token_ids=ids,
            compressed_ids=[NO_COMPRESSED_ID if i == PENDING else compressed[i] for i in ids] if lookback else ids,
            start=entry.start,
            ngram_history=[compressed[i] for i in reversed(before)],
            state_slot=sequence.state_slot,
            blocks=sequence.block_ids,
            window_start=entry.window_start,
            store_from=entry.store_from,
            total_length=sequence.num_tokens,
            owner=(sequence.arrival, entry.life),
            all_rows=request.prompt_scores is not None,
        )

    def _select(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        return hidden[self._model.device.upload(int32_row(list(rows)))]

    def _sampled_rows(self, hidden: HiddenRows, entries: Sequence[SequencePlan]) -> Tensor:
        """Hidden rows that choose tokens: the last one of each entry that samples, and the rows before drafts."""
        rows: list[int] = []
        end = 0
        for entry, length in zip(entries, hidden.lengths, strict=True):
            end += length
            rows += range(end - entry.num_sampled_rows, end)
        return hidden.rows if len(rows) == len(hidden.rows) else self._select(hidden.rows, rows)

    def _score_prompts(
        self, hidden: HiddenRows, entries: Sequence[SequencePlan], requests: Mapping[str, Request]
    ) -> list[PendingScores]:
        """Log-probabilities of prompts; the first sequence of a request speaks for all of them."""
        pending: list[PendingScores] = []
        first_row = 0
        for entry, length in zip(entries, hidden.lengths, strict=True):
            scores = requests[entry.sequence.request_id].prompt_scores
            if scores is not None and entry.sequence.index == 0:
                continues = entry.sequence.num_steps_in_flight > 1
                rows = scores.rows_to_score(entry.start, entry.num_tokens, continues=continues)
                offset = first_row - entry.start
                pending += self._score(hidden.rows[rows.start + offset : rows.stop + offset], scores, rows)
            first_row += length
        return pending

    def _score(self, hidden: Tensor, scores: PromptScores, rows: range) -> list[PendingScores]:
        pending: list[PendingScores] = []
        for begin in range(0, len(rows), _ROWS_SCORED_AT_ONCE):
            part = rows[begin : begin + _ROWS_SCORED_AT_ONCE]
            logits, targets = self._executor.logits(hidden[begin : begin + len(part)]).float(), scores.targets(part)
            scored = self._model.sampler.score(logits, targets, scores.num_alternatives)
            download = self._model.device.download(scored.tensors)
            pending.append(PendingScores(scores=scores, targets=targets, download=download))
        return pending
