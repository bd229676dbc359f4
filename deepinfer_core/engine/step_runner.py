"""From a planned step to the tokens it yields: inputs, forward pass, sampling, and the way to the host.

Nothing here waits for the device but :class:`LaunchedStep` when it is asked for tokens, so that one step can be
prepared while another runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from deepinfer_core.ops.embedding.pending_tokens import PENDING
from deepinfer_core.runtime.batch import NO_COMPRESSED_ID, SequenceRows, int32_row
from deepinfer_core.runtime.sampler import SampledRows, ScoredRows

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import Download
    from deepinfer_core.engine.logprobs import PromptScores
    from deepinfer_core.engine.request import Request
    from deepinfer_core.runtime.cache_transfer import CacheTransfer
    from deepinfer_core.runtime.executor import HiddenRows
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.sampler import SampledToken
    from deepinfer_core.runtime.sampling_tensors import SamplingRow
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


@dataclass(slots=True)
class StepTimes:
    """Seconds of the host that went into one step; see ``StepStats``."""

    plan_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    apply_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScores:
    """Log-probabilities of a part of a prompt, on their way."""

    scores: PromptScores
    targets: Sequence[int]
    download: Download


@dataclass(slots=True, kw_only=True)
class LaunchedStep:
    """A step on its way.

    Attributes:
        plan: What was planned.
        hidden: The last row of each of ``plan.sampling_entries`` ``[n, H]``.
        sampled: The entries that were sampled: those whose sequences had not ended by then.
        rows: What the sampler knew of each of these.
        download: Their tokens, on their way.
        scores: Log-probabilities of prompts, on their way.
        num_padded_rows: Rows that the device computed for nobody.
        times: Seconds of the host that went into it.
    """

    plan: StepPlan
    hidden: Tensor
    sampled: tuple[SequencePlan, ...] = ()
    num_padded_rows: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    rows: Sequence[SamplingRow] = ()
    download: Download | None = None
    scores: list[PendingScores] = field(default_factory=list["PendingScores"])

    def wait(self) -> None:
        """Block until everything has arrived."""
        for download in (self.download, *(part.download for part in self.scores)):
            if download is not None:
                download.wait()

    def tokens(self) -> list[SampledToken]:
        """The token of each of ``sampled``, once it has arrived. Whatever is wrong with one row is in its ``error``.

        Log-probabilities of prompts go to the ``prompt_scores`` of their requests, once.
        """
        found = SampledRows.of(self.download.wait()).on_host(self.rows) if self.download is not None else []
        arrived = [(part, ScoredRows.of(part.download.wait())) for part in self.scores]
        self.scores = []
        for part, rows in arrived:
            part.scores.add(rows.on_host(part.targets, part.scores.num_alternatives))
        return found


class StepRunner:
    """Launches planned steps of one model; knows requests only as what they ask.

    An exception concerns the whole step. Where every op is native, waiting for the device inside a launch is one: it
    would cost what overlap wins. References may wait.
    """

    def __init__(self, model: BoundModel, executor: StepExecutor, transfer: CacheTransfer, *, feeds_back: bool) -> None:
        """Take what runs the model.

        Args:
            model: The model.
            executor: Runs it over its caches.
            transfer: Writes to these caches what was kept elsewhere.
            feeds_back: Sampled tokens are kept on the device for a step that is launched before the host knows them.
        """
        self._model = model
        self._executor = executor
        self._transfer = transfer
        self._feeds_back = feeds_back
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
            last_rows: list[Tensor] = []
            launched = LaunchedStep(plan=plan, hidden=torch.empty(0))
            self._transfer.write(plan.loads)
            self._executor.copy_slots(plan.restores)
            for entries, is_prefill in ((plan.decodes, False), (plan.prefills, True)):
                if entries:
                    rows = [self._rows(entry, requests[entry.sequence.request_id]) for entry in entries]
                    hidden = self._executor.forward(rows, prefill=is_prefill)
                    last_rows.append(self._last_rows(hidden, entries))
                    launched.num_padded_rows += hidden.num_padded
                    if is_prefill:
                        launched.scores = self._score_prompts(hidden, entries, requests)
            self._executor.copy_slots(plan.snapshots)
            launched.hidden = last_rows[0] if len(last_rows) == 1 else torch.cat(last_rows)
        return launched

    def sample(self, launched: LaunchedStep, requests: Mapping[str, Request]) -> None:
        """Launch the sampling of a step, with all that the requests have generated before it.

        Args:
            launched: From :meth:`launch`; gets its tokens.
            requests: By id; those that have ended may be missing.
        """
        entries = launched.plan.sampling_entries
        alive = [number for number, entry in enumerate(entries) if not entry.sequence.is_finished]
        launched.sampled = tuple(entries[number] for number in alive)
        if not alive:
            return
        with self._without_waiting():
            hidden = launched.hidden if len(alive) == len(entries) else self._select(launched.hidden, alive)
            logits = self._executor.logits(hidden).float()
            rows = [requests[e.sequence.request_id].sampling_row(e.sequence.index) for e in launched.sampled]
            sampled = self._model.sampler(logits, rows)
            if self._feeds_back:
                self._executor.remember(sampled.token_ids, [e.sequence.state_slot or -1 for e in launched.sampled])
            launched.rows, launched.download = rows, self._model.device.download(sampled.tensors)

    def _rows(self, entry: SequencePlan, request: Request) -> SequenceRows:
        """Integers of one sequence in a step."""
        sequence, lookback = entry.sequence, self._model.lookback
        compressed = self._model.compressed_map
        ids = [PENDING] if entry.is_pending else entry.token_ids
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

    def _last_rows(self, hidden: HiddenRows, entries: Sequence[SequencePlan]) -> Tensor:
        """Hidden rows of the last token of each entry that samples."""
        rows: list[int] = []
        end = 0
        for entry, length in zip(entries, hidden.lengths, strict=True):
            end += length
            if entry.samples:
                rows.append(end - 1)
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
