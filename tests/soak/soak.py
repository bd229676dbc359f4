"""Random everything against one engine, for as long as it is asked for."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    import torch

    from deepinfer_core.engine.opening import OpenedModel
    from deepinfer_core.engine.step_runner import StepExecutor
    from deepinfer_core.runtime.batch import SequenceRows
    from deepinfer_core.runtime.executor import HiddenRows

FAULT = 0.004
"""Chance that a forward pass raises."""
MOST_OPEN = 24
"""Requests at once."""
NUM_TEXTS = 12
"""Beginnings of prompts; more than the cache holds, so that some must come back from the outer tiers."""


@dataclass
class Faulty:
    """Runs the model, but for now and then."""

    inner: StepExecutor
    source: random.Random

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:
        if self.source.random() < FAULT:
            raise RuntimeError("a fault that the soak planted")
        return self.inner.forward(sequences, prefill=prefill)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner.logits(hidden)

    def remember(self, token_ids: torch.Tensor, slots: Sequence[int]) -> None:
        self.inner.remember(token_ids, slots)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.inner.copy_slots(pairs)


@dataclass
class Report:
    """What happened.

    Attributes:
        ended: Requests by finish reason of their first answer.
        num_refused: Requests that were refused at the door.
        num_discarded: Requests whose owner lost interest.
        num_steps: Calls of ``step``.
        rss_bytes: Resident memory, sampled about once a second.
    """

    ended: Counter[str] = field(default_factory=Counter[str])
    num_refused: int = 0
    num_discarded: int = 0
    num_steps: int = 0
    rss_bytes: list[int] = field(default_factory=list[int])


class Soak:
    """One engine, its callers, and the ledger of who must still hear from it."""

    def __init__(self, opened: OpenedModel, folder: Path, seed: int) -> None:
        self.source = random.Random(seed)
        self.report = Report()
        self._open: dict[str, int] = {}
        self._count = 0
        self._texts = [[5 + (place * step) % 900 for place in range(400)] for step in range(7, 7 + NUM_TEXTS)]
        config = EngineConfig(
            model="tiny",
            max_num_seqs=8,
            max_model_len=640,
            max_num_batched_tokens=160,
            kv_cache_memory_gib=24.5 * opened.model.layout.bytes_per_block / 2**30,
            headroom_blocks=0,
            step_policy="mixed",
            max_chunk_tokens=96,
            max_prefill_delay_ms=2,
            max_num_waiting=20,
            overlap="on",
            prefix_cache="exact",
            prefix_snapshots=6,
            prefix_memory_gib=2 / 1024,
            prefix_disk=str(folder),
            prefix_disk_gib=8 / 1024,
            metrics=True,
        )
        self.engine = Engine(opened, config, wrap_executor=lambda inner: Faulty(inner, self.source))

    def run(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> Report:
        """Play until the time is over and everybody has got a last record."""
        end, sampled = clock() + seconds, 0.0
        while clock() < end or self.engine.has_unfinished:
            if clock() < end:
                self._disturb()
            for record in self.engine.step():
                if record.finished:
                    self._settle(record.request_id, record.outputs)
            self.report.num_steps += 1
            if clock() - sampled > 1.0:
                sampled = clock()
                self.report.rss_bytes.append(resident_bytes())
        assert not self._open, f"{len(self._open)} requests never got a last record"
        self.engine.scheduler.require_all_free()
        return self.report

    def _disturb(self) -> None:
        """Whatever callers do between two steps."""
        source = self.source
        while len(self._open) < MOST_OPEN and source.random() < 0.5:
            self._add()
        if self._open and source.random() < 0.05:
            self.engine.abort(source.choice(list(self._open)))
        if self._open and source.random() < 0.02:
            gone = source.sample(list(self._open), k=min(3, len(self._open)))
            self.engine.discard(gone)
            for request_id in gone:
                del self._open[request_id]
            self.report.num_discarded += len(gone)
        if source.random() < 0.002:  # an abort storm
            for request_id in self._open:
                self.engine.abort(request_id)

    def _add(self) -> None:
        request_id = str(self._count)
        self._count += 1
        timeout = self.source.choice([None, None, None, 0.02, 1.0])
        try:
            params = SamplingParams(**self._fields())
            self.engine.add(request_id, self._prompt(), params, priority=self.source.randint(-1, 1), timeout_s=timeout)
        except RequestError:
            self.report.num_refused += 1
            return
        self._open[request_id] = params.n

    def _prompt(self) -> list[int]:
        """The beginning of one of a few texts, with an end of its own; now and then one that cannot be served."""
        source = self.source
        if source.random() < 0.02:
            return source.choice([[], [10**6], [5] * 700])
        text = source.choice(self._texts)
        return [*text[: source.choice([3, 100, 128, 200, 300, 390])], *(source.randrange(5, 900) for _ in range(3))]

    def _fields(self) -> dict[str, Any]:
        source = self.source
        fields: dict[str, Any] = {
            "temperature": source.choice([0.0, 0.7, 1.0]),
            "max_tokens": source.choice([1, 3, 20, 60]),
            "seed": source.randrange(2**63),
            "ignore_eos": source.random() < 0.3,
        }
        extras: list[dict[str, Any]] = [
            {},
            {"top_p": 0.9, "top_k": 20},
            {"repetition_penalty": 1.2, "presence_penalty": 0.3},
            {"n": 2, "logprobs": 2},
            {"prompt_logprobs": 1},
            {"stop": ["e", " 1"]},
            {"logit_bias": {7: -3.0}, "min_p": 0.01},
            {"allowed_token_ids": [7, 8, 9]},
            {"structured_outputs": {"regex": "[a-f]{2,8}"}, "ignore_eos": False},
            {"structured_outputs": {"json_object": True}, "ignore_eos": False},
            {"structured_outputs": {"regex": "(?=a)b"}, "ignore_eos": False},
            {"max_tokens": 0},
        ]
        return fields | source.choice(extras)

    def _settle(self, request_id: str, outputs: Sequence[Any]) -> None:
        """A last record: the only one, and of somebody who waits for it."""
        assert request_id in self._open, f"request {request_id} got a last record twice, or for nobody"
        del self._open[request_id]
        assert all(output.finish_reason for output in outputs)
        self.report.ended[outputs[0].finish_reason] += 1


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
