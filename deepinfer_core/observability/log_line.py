"""What happened since the last line of the log, and that line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from deepinfer_core.observability.metric_values import share
from deepinfer_core.observability.metrics import STEP_PARTS
from deepinfer_core.observability.rate import RateWindow
from deepinfer_core.observability.records import EngineInfo, RequestStats, StatsEvent, StepStats
from deepinfer_core.outputs import DraftMetrics


class Tally:
    """Sums over all records since it was made.

    Attributes:
        num_steps: Steps that ran.
        num_ended: Requests that ended.
    """

    def __init__(self) -> None:
        self.num_steps = self.num_ended = 0
        self._events: Counter[str] = Counter()
        self._rows = self._padded = self._wasted = self._preempted = 0
        self._queries = self._hits = 0
        self._parts = [0.0] * len(STEP_PARTS)
        self._prefill_s = self._busy_s = self._idle_s = 0.0
        self._idle_known = False
        self._first_token_s: list[float] = []
        self._drafts = DraftMetrics()
        self._aborted = self._prompt_tokens = self._output_tokens = self._completions = 0

    @property
    def is_empty(self) -> bool:
        """True when nothing was counted."""
        return not (self.num_steps or self.num_ended or self._events)

    def add_step(self, stats: StepStats) -> None:
        """Count a step."""
        self._first_token_s += stats.first_token_s
        self._preempted += stats.num_preemptions
        self._queries += max(stats.prefix_queries.values(), default=0)
        self._hits += stats.num_cached_tokens
        if stats.drafts is not None:
            self._drafts += stats.drafts
        if stats.kind == "idle":
            return
        self.num_steps += 1
        self._rows += stats.num_rows
        self._padded += stats.num_padded_rows
        self._wasted += stats.num_wasted_rows
        parts = (stats.plan_s, stats.launch_s, stats.wait_s, stats.apply_s)
        self._parts = [total + part for total, part in zip(self._parts, parts, strict=True)]
        self._busy_s += stats.busy_s
        self._prefill_s += stats.busy_s if stats.kind == "prefill" else 0.0
        self._idle_known = self._idle_known or stats.device_idle_s is not None
        self._idle_s += stats.device_idle_s or 0.0

    def add_request(self, stats: RequestStats) -> None:
        """Count a request that has ended."""
        self.num_ended += 1
        self._aborted += any(completion.finish_reason == "abort" for completion in stats.completions)
        self._prompt_tokens += stats.num_prompt_tokens
        self._output_tokens += stats.num_generated_tokens
        self._completions += stats.n

    def add_event(self, event: StatsEvent) -> None:
        """Count an event."""
        self._events[event.name] += 1

    def parts(self, info: EngineInfo) -> Iterator[str]:
        """What there is to say, as parts of a line."""
        if self.num_steps:
            yield from self._steps(info)
        if self._queries:
            yield f"prefix hits {_percent(share(self._hits, self._queries))}"
        if self._drafts.num_verified:
            yield _drafts(self._drafts)
        if self._first_token_s:
            yield f"TTFT ms: mean {_mean_ms(self._first_token_s)}, max {1000 * max(self._first_token_s):.1f}"
        if self.num_ended:
            prompt, output = self._prompt_tokens / self.num_ended, share(self._output_tokens, self._completions)
            yield f"ended {self.num_ended} (mean {prompt:.1f} in, {output:.1f} out), {self._aborted} aborted"
        if self._preempted:
            yield f"preempted {self._preempted}"
        yield from (f"{name} {number}" for name, number in sorted(self._events.items()))

    def _steps(self, info: EngineInfo) -> Iterator[str]:
        rows = self._rows / self.num_steps
        all_rows = self._rows + self._padded
        yield (
            f"rows/step {rows:.1f} ({_percent(share(rows, info.max_num_batched_tokens))} of "
            f"{info.max_num_batched_tokens}), padded {_percent(share(self._padded, all_rows))}, "
            f"wasted {_percent(share(self._wasted, all_rows))}"
        )
        yield "ms/step: " + ", ".join(
            f"{name} {1000 * seconds / self.num_steps:.2f}"
            for name, seconds in zip(STEP_PARTS, self._parts, strict=True)
        )
        yield f"prefill {_percent(share(self._prefill_s, self._busy_s))} of the time"
        if self._idle_known:
            yield f"device idle {1000 * self._idle_s / self.num_steps:.3f} ms/step"


class LineMaker:
    """Keeps the windows of rates, which go on from line to line, and the tally since the last line."""

    def __init__(self, info: EngineInfo, window_s: float) -> None:
        """Begin with nothing.

        Args:
            info: About the engine.
            window_s: Seconds over which rates are taken.
        """
        self._info = info
        self._last: StepStats | None = None
        self._kind = "idle"
        self._steps, self._prompt, self._output = (RateWindow(window_s) for _ in range(3))
        self.tally = Tally()

    def add_step(self, stats: StepStats) -> None:
        """Take a step."""
        self.tally.add_step(stats)
        self._last = stats
        if stats.kind != "idle":
            self._kind = stats.kind
            self._steps.add(stats.time_s, 1)
            self._prompt.add(stats.time_s, stats.num_prompt_tokens)
            self._output.add(stats.time_s, stats.num_generated_tokens)

    def line(self, now: float) -> str:
        """The line as of now; what it tells is not told again."""
        parts = [*self._rates(now), *self._state(), *self.tally.parts(self._info)]
        self.tally = Tally()
        return f"engine {self._info.engine}: {'; '.join(parts)}"

    def _rates(self, now: float) -> Sequence[str]:
        steps, prompt, output = (window.per_second(now) for window in (self._steps, self._prompt, self._output))
        return (
            f"{self._kind if steps else 'idle'}, {steps:.1f} steps/s",
            f"tokens/s: prompt {prompt:.1f}, output {output:.1f}",
        )

    def _state(self) -> Iterator[str]:
        last = self._last
        if last is None:
            return
        reasons = ", ".join(f"{number} for {reason}" for reason, number in last.num_waiting.items() if number)
        waiting = sum(last.num_waiting.values())
        yield f"running {last.num_running}, waiting {waiting}{f' ({reasons})' if reasons else ''}"
        cache = share(last.num_used_blocks, last.num_blocks)
        state = share(last.num_used_state_slots, last.num_state_slots)
        yield f"cache {_percent(cache)}, state {_percent(state)}"


def _drafts(drafts: DraftMetrics) -> str:
    accepted, verified, length = drafts.num_accepted, drafts.num_verified, drafts.mean_accepted_length or 1.0
    return f"drafts: accepted {accepted} of {verified} ({_percent(share(accepted, verified))}), length {length:.2f}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def _mean_ms(seconds: Sequence[float]) -> str:
    return f"{1000 * sum(seconds) / len(seconds):.1f}"
