"""Random requests against an engine whose model fails now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_core import RequestOutput, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.executor import HiddenRows


@dataclass
class Improviser:
    """Stands in for the model: random logits, and now and then a fault."""

    source: random.Random
    vocab_size: int
    device: torch.device

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:  # noqa: ARG002
        if self.source.random() < 0.03:
            raise RuntimeError("a fault in the model")
        lengths = tuple(len(rows.token_ids) for rows in sequences)
        return HiddenRows(rows=torch.zeros(sum(lengths), 1, device=self.device), lengths=lengths)

    def remember(self, token_ids: Tensor, slots: Sequence[int]) -> None:
        """Nothing reads it."""

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """There is no state."""

    def logits(self, hidden: Tensor) -> Tensor:
        made = torch.randn(len(hidden), self.vocab_size, device=self.device)
        if self.source.random() < 0.05:
            made[self.source.randrange(len(made))] = torch.nan
        return made


def play(engine: Engine, source: random.Random, num_requests: int) -> list[RequestOutput]:
    """Add, abort and discard at random until all have ended; each gets exactly one last record, or was discarded.

    Returns:
        All records, in order.
    """
    added, discarded, records = 0, set[str](), list[RequestOutput]()
    while added < num_requests or engine.has_unfinished:
        if added < num_requests and source.random() < 0.5:
            prompt, limit = [5] * source.randrange(1, 300), random_limit(source)
            engine.add(str(added), prompt, random_params(source), timeout_s=limit)
            added += 1
        if source.random() < 0.1:
            engine.abort(str(source.randrange(num_requests)))
        if source.random() < 0.05:
            unwanted = str(source.randrange(num_requests))
            discarded.add(unwanted)
            engine.discard([unwanted])
        records += engine.step()
    finished_by_id = {
        str(number): [record.finished for record in records if record.request_id == str(number)]
        for number in range(num_requests)
    }
    assert all(True not in finished[:-1] for finished in finished_by_id.values())
    assert {number for number, finished in finished_by_id.items() if True not in finished} <= discarded
    return records


def random_params(source: random.Random) -> SamplingParams:
    return SamplingParams(
        n=source.choice([1, 1, 3]),
        seed=source.getrandbits(32),
        max_tokens=source.randrange(1, 40),
        prompt_logprobs=source.choice([None, None, 0]),
        output_kind=source.choice(["cumulative", "delta", "final"]),
    )


def random_limit(source: random.Random) -> float | None:
    return source.choice([None, None, None, float(source.randrange(1, 400))])
