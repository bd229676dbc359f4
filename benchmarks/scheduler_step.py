"""Time that the scheduler takes for one decode step: planning it and applying what it yields.

    python benchmarks/scheduler_step.py [--num-sequences N] [--num-steps N] [--json FILE]

Exits with 1 when the median of 256 sequences is not below 3 ms of processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import Outcome, StepKind

LIMIT_MS = 3.0
"""For 256 sequences."""
WARM_UP_STEPS = 20
PROMPT_TOKENS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Milliseconds:
    """Time of a step by two clocks; on a machine that others use too, they differ."""

    wall: float
    cpu: float


def running(num_sequences: int, num_steps: int) -> Scheduler:
    """A scheduler in which so many sequences decode, and as many wait for a place."""
    config = SchedulerConfig(
        max_model_len=PROMPT_TOKENS + num_steps + WARM_UP_STEPS + 2,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * PROMPT_TOKENS,
    )
    blocks_each = config.max_model_len // 128 + 2
    scheduler = Scheduler(config, num_blocks=num_sequences * blocks_each, num_state_slots=num_sequences)
    for number in range(2 * num_sequences):
        prompt = [number + place for place in range(PROMPT_TOKENS - number % 128)]
        scheduler.add(
            Sequence(
                request_id=str(number),
                prompt_token_ids=prompt,
                max_tokens=config.max_model_len,
                eos_token_id=1,
                stop_token_ids=frozenset({2, 3}),
            )
        )
    return scheduler


def step_ms(scheduler: Scheduler, kind: StepKind) -> Milliseconds:
    """Time of ``plan``, ``apply`` and ``take_finished``; what stands in for the model is not counted."""
    started = _clocks()
    plan = scheduler.plan(now=0.0)
    planned = _clocks()
    if plan is None or plan.kind is not kind:
        raise SystemExit(f"a {kind.value} step was expected, and {plan} came")
    outcomes = [Outcome(token_ids=(9,)) for _ in plan.sampling_entries]
    executed = _clocks()
    scheduler.apply(plan, outcomes)
    scheduler.take_finished()
    ended = _clocks()
    wall, cpu = (1e3 * (planned[i] - started[i] + ended[i] - executed[i]) for i in (0, 1))
    return Milliseconds(wall=wall, cpu=cpu)


def _clocks() -> tuple[float, float]:
    """Seconds of the wall clock, and of this thread's own work."""
    return time.perf_counter(), time.thread_time()


def measure(num_sequences: int, num_steps: int) -> dict[str, Any]:
    """Run the benchmark and describe it."""
    scheduler = running(num_sequences, num_steps)
    prefill = step_ms(scheduler, StepKind.PREFILL)
    times = [step_ms(scheduler, StepKind.DECODE) for _ in range(WARM_UP_STEPS + num_steps)][WARM_UP_STEPS:]
    return {
        "what": "milliseconds that the scheduler needs to plan one decode step and apply what it yields",
        "method": f"{num_steps} steps after {WARM_UP_STEPS} for warming up; as many sequences wait as run; processor "
        "time is this thread's own work, wall time includes what others on the machine took",
        "limit_ms_256_sequences": LIMIT_MS,
        "num_sequences": num_sequences,
        "num_steps": num_steps,
        "decode_wall_ms": _percentiles([step.wall for step in times]),
        "decode_cpu_ms": _percentiles([step.cpu for step in times]),
        "prefill_wall_ms": round(prefill.wall, 3),
        "config": asdict(scheduler.config),
        "machine": describe_machine(),
        "versions": describe_versions("cpu"),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "p99": round(statistics.quantiles(values, n=100)[98], 3)}


def main() -> int:
    """Measure, print, and write the result if asked."""
    parser = argparse.ArgumentParser(description="Time of planning and applying one decode step.")
    parser.add_argument("--num-sequences", type=int, default=256, help="sequences that decode (default 256)")
    parser.add_argument("--num-steps", type=int, default=500, help="steps that are timed (default 500)")
    parser.add_argument("--json", type=Path, help="file to write the result to")
    arguments = parser.parse_args()
    result = measure(arguments.num_sequences, arguments.num_steps)
    print(f"planning and applying one decode step of {result['num_sequences']} sequences, in ms:")
    print(f"  wall clock {result['decode_wall_ms']}, processor {result['decode_cpu_ms']}")
    print(f"admitting all of them in one prefill step: {result['prefill_wall_ms']} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    is_too_slow = arguments.num_sequences <= 256 and result["decode_cpu_ms"]["median"] >= LIMIT_MS
    return 1 if is_too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
