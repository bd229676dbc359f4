"""The loop: plan a step, run it, sample, apply, tell the requests."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from deepinfer_core.engine.completion import Completion
from deepinfer_core.engine.request import Request
from deepinfer_core.errors import CapacityError, RequestError
from deepinfer_core.logging import get_logger
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.sequence import Sequence as ScheduledSequence
from deepinfer_core.scheduler.step_plan import Outcome, SequencePlan, StepKind, StepPlan

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.opening import OpenedModel
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.sampler import SampledToken
    from deepinfer_core.sampling_params import SamplingParams

log = get_logger(__name__)

_SHARE_OF_FREE_MEMORY = 0.25
_GIB = 2**30


class Engine:
    """Many requests over one model. Not thread-safe; each call of :meth:`step` runs one step."""

    def __init__(
        self, opened: OpenedModel, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Allocate caches for an opened model.

        Args:
            opened: The model and its tokenizer.
            config: Limits and memory.
            clock: Monotonic seconds, for metrics and deadlines.

        Raises:
            CapacityError: The memory given does not hold one block.
        """
        model = opened.model
        self.opened = opened
        self._clock = clock
        max_model_len = min(config.max_model_len or model.max_positions, model.max_positions)
        limits = config.scheduler(max_model_len)
        num_blocks = _num_blocks(model, config, max_model_len)
        self.scheduler = Scheduler(limits, num_blocks=num_blocks, num_state_slots=config.max_num_seqs)
        self._executor = Executor(model, model.allocate(num_blocks, config.max_num_seqs))
        self._requests: dict[str, Request] = {}
        self._seeds = random.Random(config.seed) if config.seed is not None else secrets.SystemRandom()  # noqa: S311  # repeatable on purpose

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: Unique among the unfinished requests.
            prompt_token_ids: The prompt.
            params: How to sample.
            prompt: The prompt's text, for the record.
            priority: Lower values are served first.
            timeout_s: Seconds after which it ends with what it has.

        Raises:
            RequestError: The prompt or its parameters cannot be served; nothing was queued.
        """
        now = self._clock()
        deadline = math.inf if timeout_s is None else now + timeout_s
        sequence = self._checked_sequence(request_id, prompt_token_ids, params, priority, deadline)
        self.scheduler.add(sequence)
        self._requests[request_id] = Request(
            request_id=request_id,
            prompt=prompt,
            params=params,
            seed=params.seed if params.seed is not None else self._seeds.getrandbits(64),
            sequence=sequence,
            completion=Completion(0, params, self.opened.tokenizer, self._architecture.eos_token_id),
            arrival_time=now,
        )

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise what :meth:`add` would raise for a prompt, apart from its id.

        Raises:
            RequestError: Token ids, length or parameters cannot be served.
        """
        self._checked_sequence("", prompt_token_ids, params, 0, math.inf)

    def _checked_sequence(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        priority: int,
        deadline: float,
    ) -> ScheduledSequence:
        vocabulary = self._architecture.vocab_size
        wrong = [i for i in prompt_token_ids if not 0 <= i < vocabulary]
        if wrong or not prompt_token_ids:
            what = f"token ids {wrong[:5]} are outside 0 .. {vocabulary - 1}" if wrong else "it has no tokens"
            raise RequestError(f"prompt: {what}; give at least one token of this model")
        params.check_vocabulary(vocabulary)
        sequence = ScheduledSequence(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            max_tokens=params.max_tokens,
            priority=priority,
            deadline=deadline,
        )
        self.scheduler.check(sequence)
        return sequence

    def abort(self, request_id: str) -> None:
        """End a request; its record comes with the next step. Unknown ids are ignored: it may just have ended."""
        self.scheduler.abort(request_id)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the requests that changed, each ended one exactly once."""
        now = self._clock()
        plan = self.scheduler.plan(now)
        if plan is not None:
            for entry in plan.entries:
                request = self._requests[entry.sequence.request_id]
                request.first_scheduled_time = request.first_scheduled_time or now
            self._advance(plan)
        ended = [self._retire(sequence) for sequence in self.scheduler.take_finished()]
        entries = plan.sampling_entries if plan is not None else ()
        running = [self._requests[e.sequence.request_id] for e in entries if not e.sequence.is_finished]
        return [request.output() for request in (*running, *ended)]

    def run(self) -> Iterator[RequestOutput]:
        """Step until nothing is left."""
        while self.has_unfinished:
            yield from self.step()

    def close(self) -> None:
        """Abort everything."""
        for request_id in list(self._requests):
            self.abort(request_id)
        for sequence in self.scheduler.take_finished():
            self._retire(sequence)

    def _advance(self, plan: StepPlan) -> None:
        """Execute a plan and hand its tokens to the requests."""
        try:
            hidden, _ = self._executor.run([self._rows(e) for e in plan.entries], prefill=plan.kind is StepKind.PREFILL)
            requests = [self._requests[entry.sequence.request_id] for entry in plan.sampling_entries]
            sampled = self._sample(_last_rows(hidden, plan), requests)
        except BaseException:
            self.scheduler.cancel(plan)
            raise
        now = self._clock()
        self.scheduler.apply(
            plan, [self._take(request, token, now) for request, token in zip(requests, sampled, strict=True)]
        )

    def _sample(self, hidden: Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        if not requests:
            return []
        logits = self._executor.logits(hidden).float()
        rows = [request.sampling_row() for request in requests]
        return self.opened.model.sampler(logits, rows).on_host(rows)

    def _take(self, request: Request, sampled: SampledToken, now: float) -> Outcome:
        """Give a request its token; the completion decides whether it ends."""
        completion = request.completion
        completion.push(sampled)
        request.first_token_time = request.first_token_time or now
        reason = FinishReason(completion.finish_reason) if completion.finish_reason else None
        tokens = () if sampled.error else (sampled.token_id,)
        return Outcome(token_ids=tokens, finish_reason=reason)

    def _rows(self, entry: SequencePlan) -> SequenceRows:
        """Integers of one sequence in a step."""
        sequence, model = entry.sequence, self.opened.model
        compressed, lookback = model.compressed_map, model.lookback
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

    def _retire(self, sequence: ScheduledSequence) -> Request:
        """Take an ended sequence out; the scheduler's reason counts where the completion has none."""
        request = self._requests.pop(sequence.request_id)
        if request.completion.finish_reason is None and sequence.finish_reason is not None:
            request.completion.finish(sequence.finish_reason.value)
        request.finished_time = self._clock()
        return request

    @property
    def _architecture(self) -> ModelArchitecture:
        return self.opened.model.architecture


def _last_rows(hidden: Tensor, plan: StepPlan) -> Tensor:
    """Hidden rows of the last token of each entry that samples."""
    rows: list[int] = []
    end = 0
    for entry in plan.entries:
        end += entry.num_tokens
        if entry.samples:
            rows.append(end - 1)
    return hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]


def _num_blocks(model: BoundModel, config: EngineConfig, max_model_len: int) -> int:
    """Blocks that the memory holds, but no more than all sequences at full length would use."""
    layout = model.layout
    free = model.device.memory().free_bytes
    budget = int(config.kv_cache_memory_gib * _GIB) or int(free * _SHARE_OF_FREE_MEMORY)
    blocks = min(budget // layout.bytes_per_block, config.max_num_seqs * layout.blocks_for(max_model_len))
    if blocks < 1:
        need = f"one block of {layout.bytes_per_block} bytes"
        raise CapacityError(f"kv cache: {budget / _GIB:.3f} GiB do not hold {need}; raise kv_cache_memory_gib")
    mib = blocks * layout.bytes_per_block / 2**20
    log.info("kv cache: %d blocks of %d tokens, %.1f MiB", blocks, layout.block_tokens, mib)
    return blocks
