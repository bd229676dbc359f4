"""Measure a model: many requests at once for throughput, one after the other for latency.

Requests that come by themselves are in :mod:`~deepinfer_core.engine.benchmark_load`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from typing import TYPE_CHECKING

from deepinfer_core.outputs import DraftMetrics
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.llm import LLM
    from deepinfer_core.outputs import RequestOutput

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """What was measured of one request; times in seconds.

    Attributes:
        num_prompt_tokens: Length of its prompt.
        num_output_tokens: Tokens that it generated.
        first_token_s: From its arrival to its first token (TTFT).
        token_s: From token to token after the first, on average (TPOT); None with one token.
        total_s: From its arrival to its end.
        gaps_s: Each time from token to token (ITL); empty where only the average was measured.
        drafts: How its drafts fared; None without speculative decoding.
        error: Why it failed; "" when it did not.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    first_token_s: float = 0.0
    token_s: float | None = None
    total_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    drafts: DraftMetrics | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All requests of a run.

    Attributes:
        requests: In the order of the prompts.
        duration_s: From the first arrival to the last end.
    """

    requests: tuple[RequestTimes, ...]
    duration_s: float

    @property
    def num_failed(self) -> int:
        """Requests that ended with an error."""
        return sum(bool(request.error) for request in self.requests)

    @property
    def rates(self) -> dict[str, float]:
        """Requests and tokens in a second."""
        num_input = sum(request.num_prompt_tokens for request in self.requests)
        num_output = sum(request.num_output_tokens for request in self.requests)
        return {
            "requests_per_s": len(self.requests) / self.duration_s,
            "input_tokens_per_s": num_input / self.duration_s,
            "output_tokens_per_s": num_output / self.duration_s,
            "tokens_per_s": (num_input + num_output) / self.duration_s,
        }

    @property
    def drafts(self) -> DraftMetrics | None:
        """How the drafts of all requests fared; None without speculative decoding."""
        drafts = [request.drafts for request in self.requests if request.drafts is not None]
        return sum(drafts, DraftMetrics()) if drafts else None

    @property
    def times(self) -> dict[str, tuple[float, ...]]:
        """Every kind of time that was measured -> its values in seconds, one for each request (or for each gap)."""
        done = [request for request in self.requests if not request.error]
        kinds = {
            "first_token_s": tuple(request.first_token_s for request in done),
            "token_s": tuple(request.token_s for request in done if request.token_s is not None),
            "gap_s": tuple(gap for request in done for gap in request.gaps_s),
            "total_s": tuple(request.total_s for request in done),
        }
        return {kind: values for kind, values in kinds.items() if values}


def random_prompts(
    architecture: ModelArchitecture, lengths: Sequence[int], number: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Prompts of random tokens; the same seed gives the same ones on every machine.

    Args:
        architecture: Whose tokens; those that begin or end a text, or stand for an image, are left out.
        lengths: Prompt lengths, taken in turn.
        number: How many prompts.
        seed: Any whole number.
    """
    special = {
        architecture.bos_token_id,
        architecture.eos_token_id,
        architecture.pad_token_id,
        architecture.image_token_id,
    }
    tokens = [token for token in range(architecture.vocab_size) if token not in special]
    numbers = random.Random(seed)  # noqa: S311  # repeatable on purpose
    return tuple(tuple(numbers.choices(tokens, k=length)) for length in islice(cycle(lengths), number))


def fixed_length(num_tokens: int, *, temperature: float) -> SamplingParams:
    """Parameters under which every request generates exactly this many tokens."""
    return SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True)


def measure_throughput(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, *, seed: int, progress: bool = False
) -> Measurement:
    """Send all prompts at once and wait for the last.

    Args:
        llm: The model; it runs as many at once as its settings allow.
        prompts: Token ids.
        params: For all of them; each gets a seed of its own.
        seed: Source of those seeds.
        progress: Show progress on a terminal.
    """
    listed = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    seeded = [replace(params, seed=seed + number) for number in range(len(listed))]
    start = time.perf_counter()
    outputs = llm.generate(listed, seeded, use_tqdm=progress)
    duration = time.perf_counter() - start
    return Measurement(requests=tuple(_times_of(output) for output in outputs), duration_s=duration)


def measure_latency(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    seed: int,
    track: Callable[[Sequence[Sequence[int]]], Iterator[Sequence[int]]] = iter,
) -> Measurement:
    """Send one prompt after the other, each when the one before has ended, and take the time of every token.

    Args:
        llm: The model.
        prompts: Token ids.
        params: For all of them; each gets a seed of its own.
        seed: Source of those seeds.
        track: Wraps the prompts, to show progress.
    """
    start = time.perf_counter()
    requests = tuple(
        _stream_one(llm, prompt, replace(params, seed=seed + number)) for number, prompt in enumerate(track(prompts))
    )
    return Measurement(requests=requests, duration_s=time.perf_counter() - start)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Percentiles, mean, least and largest of at least one value."""
    ordered = sorted(values)
    ranks = {f"p{percent}": _percentile(ordered, percent) for percent in PERCENTILES}
    return {**ranks, "mean": sum(ordered) / len(ordered), "min": ordered[0], "max": ordered[-1]}


def summaries(measurement: Measurement) -> Mapping[str, dict[str, float]]:
    """Every kind of time -> its summary."""
    return {kind: summarize(values) for kind, values in measurement.times.items()}


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks, as numpy does it by default."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _times_of(output: RequestOutput) -> RequestTimes:
    """From the engine's own clock."""
    completion, metrics = output.outputs[0], output.metrics
    times = RequestTimes(
        num_prompt_tokens=len(output.prompt_token_ids),
        num_output_tokens=len(completion.token_ids),
        drafts=drafts_of(output),
    )
    if completion.error or metrics is None or metrics.time_to_first_token_s is None:
        return replace(times, error=completion.error or f"it ended without a token ({completion.finish_reason})")
    num_gaps = times.num_output_tokens - 1
    return replace(
        times,
        first_token_s=metrics.time_to_first_token_s,
        token_s=(metrics.decode_time_s or 0.0) / num_gaps if num_gaps else None,
        total_s=metrics.total_time_s or 0.0,
        gaps_s=metrics.inter_token_latencies,
    )


def drafts_of(output: RequestOutput) -> DraftMetrics | None:
    """How the drafts of a request have fared so far."""
    return output.metrics.drafts if output.metrics is not None else None


def _stream_one(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> RequestTimes:
    """From this process's clock, at each record of the stream."""
    start = time.perf_counter()
    arrivals: list[float] = []
    error = ""
    drafts = None
    for output in llm.stream({"prompt_token_ids": list(prompt)}, params):
        now = time.perf_counter()
        completion = output.outputs[0]
        arrivals += [now] * (len(completion.token_ids) - len(arrivals))
        error, drafts = completion.error, drafts_of(output)
    total = time.perf_counter() - start
    gaps = tuple(later - earlier for earlier, later in pairwise(arrivals))
    return RequestTimes(
        num_prompt_tokens=len(prompt),
        num_output_tokens=len(arrivals),
        first_token_s=arrivals[0] - start if arrivals else 0.0,
        token_s=sum(gaps) / len(gaps) if gaps else None,
        total_s=total,
        gaps_s=gaps,
        drafts=drafts,
        error=error or ("" if arrivals else "it ended without a token"),
    )
