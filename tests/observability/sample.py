"""Records for the tests of this folder."""

from __future__ import annotations

from typing import Any

from deepinfer_core.observability.records import CompletionStats, EngineInfo, RequestStats, StatsEvent, StepStats
from deepinfer_core.outputs import RequestMetrics

INFO = EngineInfo(
    model_name='a "model"', engine=3, block_tokens=128, num_blocks=64, num_state_slots=8, max_num_batched_tokens=1000
)


def step(**fields: Any) -> StepStats:
    """A decode step of four sequences; ``fields`` replace its own."""
    given: dict[str, Any] = {
        "time_s": 100.0,
        "kind": "decode",
        "num_sequences": 4,
        "num_rows": 4,
        "num_generated_tokens": 4,
        "num_running": 4,
        "num_blocks": 64,
        "num_used_blocks": 16,
        "num_state_slots": 8,
        "num_used_state_slots": 4,
        "plan_s": 0.001,
        "launch_s": 0.002,
        "wait_s": 0.006,
        "apply_s": 0.001,
    }
    return StepStats(**{**given, **fields})


def request(*completions: CompletionStats, **fields: Any) -> RequestStats:
    """A request that waited 1 s, had its first token after 2 s, its fifth after 4 s and ended after 5 s."""
    given: dict[str, Any] = {
        "request_id": "r",
        "num_prompt_tokens": 10,
        "times": RequestMetrics(
            arrival_time=50.0,
            first_scheduled_time=51.0,
            first_token_time=52.0,
            last_token_time=54.0,
            finished_time=55.0,
            num_output_tokens=5,
        ),
        "completions": completions or (CompletionStats(finish_reason="stop", num_tokens=5, decode_s=2.0),),
        "max_tokens": 16,
    }
    return RequestStats(**{**given, **fields})


class Recorder:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[StepStats | RequestStats | StatsEvent] = []
        self.num_closed = 0

    def on_step(self, stats: StepStats) -> None:
        self.records.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        self.records.append(stats)

    def on_event(self, event: StatsEvent) -> None:
        self.records.append(event)

    def close(self) -> None:
        self.num_closed += 1


class Broken(Recorder):
    """A sink that raises whenever it can."""

    def on_step(self, stats: StepStats) -> None:
        super().on_step(stats)
        raise OSError("no space left")

    def close(self) -> None:
        super().close()
        raise OSError("still none")
