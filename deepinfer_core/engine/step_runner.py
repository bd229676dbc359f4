"""From a planned step to the tokens it yields: inputs, forward pass, sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.scheduler.step_plan import StepKind

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.engine.logprobs import PromptScores
    from deepinfer_core.engine.request import Request
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.sampler import SampledToken
    from deepinfer_core.scheduler.step_plan import SequencePlan, StepPlan

_ROWS_SCORED_AT_ONCE = 256
"""Bounds the memory for logits of a long prompt whose log-probabilities are asked for."""


class StepExecutor(Protocol):
    """What runs the model; :class:`~deepinfer_core.runtime.executor.Executor` in earnest."""

    def run(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> tuple[Tensor, Any]:
        """One forward pass over rows; returns their hidden states ``[T, H]`` first."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of hidden rows."""
        ...


class StepRunner:
    """Runs planned steps of one model; knows requests only as what they ask."""

    def __init__(self, model: BoundModel, executor: StepExecutor) -> None:
        self._model = model
        self._executor = executor

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> list[SampledToken]:
        """Execute a step.

        Log-probabilities of prompts go to the ``prompt_scores`` of their requests. Whatever is wrong with one row
        comes back as the ``error`` of its token; an exception concerns the whole step.

        Args:
            plan: What to run.
            requests: By id; all of the plan are there.

        Returns:
            The token of each of ``plan.sampling_entries``.
        """
        hidden, _ = self._executor.run([self._rows(entry) for entry in plan.entries], prefill=_is_prefill(plan))
        sampled = self._sample(_last_rows(hidden, plan), plan.sampling_entries, requests)
        if _is_prefill(plan):
            self._score_prompts(hidden, plan, requests)
        return sampled

    def _rows(self, entry: SequencePlan) -> SequenceRows:
        """Integers of one sequence in a step."""
        sequence, lookback = entry.sequence, self._model.lookback
        compressed = self._model.compressed_map
        ids = entry.token_ids
        before = sequence.token_ids[max(entry.start - lookback, 0) : entry.start]
        return SequenceRows(
            token_ids=ids,
            compressed_ids=[compressed[i] for i in ids] if lookback else ids,
            start=entry.start,
            ngram_history=[compressed[i] for i in reversed(before)],
            state_slot=sequence.state_slot,
            blocks=sequence.block_ids,
        )

    def _sample(
        self, hidden: Tensor, entries: Sequence[SequencePlan], requests: Mapping[str, Request]
    ) -> list[SampledToken]:
        if not entries:
            return []
        logits = self._executor.logits(hidden).float()
        rows = [requests[e.sequence.request_id].sampling_row(e.sequence.index) for e in entries]
        return self._model.sampler(logits, rows).on_host(rows)

    def _score_prompts(self, hidden: Tensor, plan: StepPlan, requests: Mapping[str, Request]) -> None:
        """Report the log-probabilities of prompts; the first sequence of a request speaks for all of them."""
        first_row = 0
        for entry in plan.entries:
            scores = requests[entry.sequence.request_id].prompt_scores
            if scores is not None and entry.sequence.index == 0:
                rows = scores.rows_to_score(entry.start, entry.num_tokens)
                offset = first_row - entry.start
                self._score(hidden[rows.start + offset : rows.stop + offset], scores, rows)
            first_row += entry.num_tokens

    def _score(self, hidden: Tensor, scores: PromptScores, rows: range) -> None:
        for begin in range(0, len(rows), _ROWS_SCORED_AT_ONCE):
            part = rows[begin : begin + _ROWS_SCORED_AT_ONCE]
            logits = self._executor.logits(hidden[begin : begin + len(part)]).float()
            scores.add(self._model.sampler.score(logits, scores.targets(part), scores.num_alternatives))


def _is_prefill(plan: StepPlan) -> bool:
    return plan.kind is StepKind.PREFILL


def _last_rows(hidden: Tensor, plan: StepPlan) -> Tensor:
    """Hidden rows of the last token of each entry that samples."""
    rows: list[int] = []
    end = 0
    for entry in plan.entries:
        end += entry.num_tokens
        if entry.samples:
            rows.append(end - 1)
    return hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]
