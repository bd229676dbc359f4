"""Measure a model under a load: requests that arrive by themselves, and only so many at once."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

from deepinfer_core.engine.benchmark import Measurement, RequestTimes, drafts_of
from deepinfer_core.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from deepinfer_core.outputs import DraftMetrics, RequestOutput
    from deepinfer_core.sampling_params import SamplingParams


class LoadTarget(Protocol):
    """What is loaded; the engine is one. What it takes and gives is said there."""

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise when a request cannot be served."""
        ...

    def add(self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Take a request."""
        ...

    def step(self) -> list[RequestOutput]:
        """Do a little; returns what is new."""
        ...

    def discard(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests come.

    Attributes:
        request_rate: Requests in a second on average, in a Poisson process; infinity sends all at once.
        max_concurrency: Requests that may be unfinished at once; one that would be one too many is sent when another
            has ended. None sets no limit.
    """

    request_rate: float = math.inf
    max_concurrency: int | None = None

    def arrivals(self, number: int, seed: int) -> tuple[float, ...]:
        """When requests come, in seconds after the first; the same for a seed on every machine."""
        if self.request_rate == math.inf:
            return (0.0,) * number
        numbers = random.Random(seed)  # noqa: S311  # repeatable on purpose
        gaps = (numbers.expovariate(self.request_rate) for _ in range(number - 1))
        return tuple(accumulate(gaps, initial=0.0))[:number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What tells the time and lets it pass; tests have their own."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


def measure_load(
    target: LoadTarget,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    load: Load,
    *,
    seed: int,
    timing: Timing | None = None,
) -> Measurement:
    """Send prompts as they are due and take the time of every token; times of a request begin when it is sent.

    Args:
        target: The engine; nothing else may use it meanwhile.
        prompts: Token ids.
        params: For all of them; each gets a seed of its own.
        load: When they are sent.
        seed: Source of those seeds and of the arrivals.
        timing: The time of the machine, unless given.

    Raises:
        RequestError: A prompt cannot be served; nothing was sent.
    """
    for prompt in prompts:
        target.check(prompt, params)
    run = _Run(target, prompts, params, seed, timing or Timing())
    try:
        return run.measure(load.arrivals(len(prompts), seed), load.max_concurrency or len(prompts))
    finally:
        target.discard(run.request_ids)  # whatever interrupts leaves nothing behind


@dataclass(slots=True)
class _Sent:
    """One request that was sent."""

    start: float
    times: list[float] = field(default_factory=list[float])
    end: float = 0.0
    error: str = ""
    drafts: DraftMetrics | None = None

    def request_times(self, num_prompt_tokens: int) -> RequestTimes:
        gaps = tuple(later - earlier for earlier, later in pairwise(self.times))
        return RequestTimes(
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=len(self.times),
            first_token_s=self.times[0] - self.start if self.times else 0.0,
            token_s=sum(gaps) / len(gaps) if gaps else None,
            total_s=self.end - self.start,
            gaps_s=gaps,
            drafts=self.drafts,
            error=self.error or ("" if self.times else "it ended without a token"),
        )


class _Run:
    """One measurement."""

    def __init__(
        self,
        target: LoadTarget,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        seed: int,
        timing: Timing,
    ) -> None:
        self._target, self._prompts, self._timing, self._seed = target, prompts, timing, seed
        self._params = replace(params, output_kind=RequestOutputKind.DELTA)
        self._sent: dict[str, _Sent] = {}
        self._num_unfinished = 0

    @property
    def request_ids(self) -> Iterable[str]:
        """Those that were sent."""
        return self._sent

    def measure(self, arrivals: Sequence[float], max_concurrency: int) -> Measurement:
        """Send, step and wait until the last request has ended."""
        start = self._timing.clock()
        due = deque(enumerate(start + arrival for arrival in arrivals))
        while due or self._num_unfinished:
            while due and due[0][1] <= self._timing.clock() and self._num_unfinished < max_concurrency:
                self._send(due.popleft()[0])
            if self._num_unfinished:
                self._step()
            else:
                self._timing.sleep(max(due[0][1] - self._timing.clock(), 0.0))
        duration = self._timing.clock() - start
        records = zip(self._sent.values(), self._prompts, strict=True)
        return Measurement(
            requests=tuple(sent.request_times(len(prompt)) for sent, prompt in records), duration_s=duration
        )

    def _send(self, number: int) -> None:
        request_id = f"load-{number}"
        self._sent[request_id] = _Sent(self._timing.clock())
        self._num_unfinished += 1
        self._target.add(request_id, self._prompts[number], replace(self._params, seed=self._seed + number))

    def _step(self) -> None:
        outputs = self._target.step()
        now = self._timing.clock()
        for output in outputs:
            sent = self._sent[output.request_id]
            for completion in output.outputs:
                sent.times += [now] * len(completion.token_ids)
                sent.error = sent.error or completion.error
            if output.finished:
                sent.end, sent.drafts = now, drafts_of(output)
                self._num_unfinished -= 1
