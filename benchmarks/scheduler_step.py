"""Time that the scheduler takes for one decode step: planning it and applying what it yields.

    python benchmarks/scheduler_step.py [--num-sequences N] [--num-steps N] [--num-drafts N] [--json FILE]

With drafts, every step yields new ones, and the time of the planner that chooses how many are verified is given on its
own: what the device waits for, and all of its work. Its prices are invented: a stair for each size that the engine
records.

Exits with 1 when the median of 256 sequences is not below 3 ms of processor time, or what the device waits for the
planner not below 0.3 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Sequences
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.runtime.captured import round_up_rows, row_sizes
from deepinfer_core.scheduler.draft_budget import AdaptiveLengths
from deepinfer_core.scheduler.drafts import DraftPlanner, Proposal, StepTiming
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_plan import Outcome, SequencePlan, StepKind
from deepinfer_core.scheduler.step_time import StepTimeModel

LIMIT_MS = 3.0
"""For 256 sequences."""
PLANNER_LIMIT_MS = 0.3
"""For 256 sequences, of it."""
WARM_UP_STEPS = 20
PROMPT_TOKENS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Milliseconds:
    """Time of a step by two clocks; on a machine that others use too, they differ."""

    wall: float
    cpu: float


class TimedPlanner:
    """A planner of draft lengths, with the processor time of its work since it was asked last.

    Attributes:
        waited_s: For what the device waits for.
        hidden_s: For what is done while the device works.
    """

    def __init__(self, planner: DraftPlanner) -> None:
        self._planner = planner
        self.waited_s = self.hidden_s = 0.0

    def reset(self) -> None:
        """Forget the times."""
        self.waited_s = self.hidden_s = 0.0

    def lengths(self, sequences: Sequences[Sequence], limits: Sequences[int], num_spare_rows: int) -> Sequences[int]:
        """As the planner says."""
        with self._timed():
            return self._planner.lengths(sequences, limits, num_spare_rows)

    def proposes(self, num_sequences: int) -> bool:
        """As the planner says."""
        with self._timed():
            return self._planner.proposes(num_sequences)

    def reflect(self) -> None:
        """Passed on."""
        began = time.thread_time()
        self._planner.reflect()
        self.hidden_s += time.thread_time() - began

    def observe(self, timing: StepTiming) -> None:
        """Passed on."""
        with self._timed():
            self._planner.observe(timing)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.waited_s += time.thread_time() - began


def adaptive(num_sequences: int, num_drafts: int) -> AdaptiveLengths:
    """A planner for which neither all drafts pay nor none."""
    most = num_sequences * (1 + num_drafts)
    sizes = [*takewhile(lambda size: size < most, row_sizes()), round_up_rows(most)]
    draft_s = {1: 0.001, num_sequences: 0.003}
    return AdaptiveLengths(StepTimeModel({size: 0.008 + 25e-6 * size for size in sizes}, draft=draft_s))


def running(num_sequences: int, num_steps: int, num_drafts: int, planner: DraftPlanner | None) -> Scheduler:
    """A scheduler in which so many sequences decode, and as many wait for a place."""
    config = SchedulerConfig(
        max_model_len=PROMPT_TOKENS + (num_steps + WARM_UP_STEPS) * (1 + num_drafts) + 2,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * PROMPT_TOKENS,
    )
    blocks_each = config.max_model_len // 128 + 2
    num_blocks = num_sequences * blocks_each
    scheduler = Scheduler(config, num_blocks=num_blocks, num_state_slots=num_sequences, drafts=planner)
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


class Drafting:
    """Stands in for the draft module: drafts stand at random, as often as their confidence says."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts
        self._random = random.Random(0)

    def outcome(self, entry: SequencePlan) -> Outcome:
        """What a step yields for a sequence."""
        draw = self._random.random
        chances = entry.sequence.proposal.confidence
        num_accepted = 0
        while num_accepted < len(entry.draft_token_ids) and draw() < chances[num_accepted]:
            num_accepted += 1
        confidence = tuple(draw() ** 0.15 for _ in range(self._num_drafts))
        proposal = Proposal((9,) * self._num_drafts, confidence)
        return Outcome(token_ids=(9,) * (1 + num_accepted), proposal=proposal)


def step_ms(scheduler: Scheduler, kind: StepKind, drafting: Drafting) -> Milliseconds:
    """Time of ``plan``, ``apply`` and ``take_finished``; what stands in for the model is not counted."""
    started = _clocks()
    plan = scheduler.plan(now=0.0)
    planned = _clocks()
    if plan is None or plan.kind is not kind:
        raise SystemExit(f"a {kind.value} step was expected, and {plan} came")
    outcomes = [drafting.outcome(entry) for entry in plan.sampling_entries]
    timing = StepTiming(
        num_sequences=len(outcomes), num_rows=plan.num_tokens, verify_s=0.015, rest_s=0.003, proposed=plan.proposes
    )
    scheduler.reflect()
    executed = _clocks()
    scheduler.apply(plan, outcomes)
    scheduler.take_finished()
    if plan.kind is StepKind.DECODE:
        scheduler.observe(timing)
    ended = _clocks()
    wall, cpu = (1e3 * (planned[i] - started[i] + ended[i] - executed[i]) for i in (0, 1))
    return Milliseconds(wall=wall, cpu=cpu)


def _clocks() -> tuple[float, float]:
    """Seconds of the wall clock, and of this thread's own work."""
    return time.perf_counter(), time.thread_time()


def measure(num_sequences: int, num_steps: int, num_drafts: int) -> dict[str, Any]:
    """Run the benchmark and describe it."""
    planner = TimedPlanner(adaptive(num_sequences, num_drafts)) if num_drafts else None
    drafting = Drafting(num_drafts)
    scheduler = running(num_sequences, num_steps, num_drafts, planner)
    prefill = step_ms(scheduler, StepKind.PREFILL, drafting)
    times: list[Milliseconds] = []
    waited_ms: list[float] = []
    work_ms: list[float] = []
    for _ in range(WARM_UP_STEPS + num_steps):
        if planner is not None:
            planner.reset()
        times.append(step_ms(scheduler, StepKind.DECODE, drafting))
        if planner is not None:
            waited_ms.append(1e3 * planner.waited_s)
            work_ms.append(1e3 * (planner.waited_s + planner.hidden_s))
    times, waited_ms, work_ms = (found[WARM_UP_STEPS:] for found in (times, waited_ms, work_ms))
    return {
        "what": "milliseconds that the scheduler needs to plan one decode step and apply what it yields",
        "method": f"{num_steps} steps after {WARM_UP_STEPS} for warming up; as many sequences wait as run; processor "
        "time is this thread's own work, wall time includes what others on the machine took",
        "limit_ms_256_sequences": LIMIT_MS,
        "planner_limit_ms_256_sequences": PLANNER_LIMIT_MS,
        "num_sequences": num_sequences,
        "num_steps": num_steps,
        "num_drafts": num_drafts,
        "decode_wall_ms": _percentiles([step.wall for step in times]),
        "decode_cpu_ms": _percentiles([step.cpu for step in times]),
        "planner_waited_for_cpu_ms": _percentiles(waited_ms) if planner is not None else None,
        "planner_work_cpu_ms": _percentiles(work_ms) if planner is not None else None,
        "prefill_wall_ms": round(prefill.wall, 3),
        "config": asdict(scheduler.config),
        "machine": describe_machine(),
        "versions": describe_versions("cpu"),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    quantiles = statistics.quantiles(values, n=100)
    return {
        "least": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "p90": round(quantiles[89], 3),
        "p99": round(quantiles[98], 3),
    }


def main() -> int:
    """Measure, print, and write the result if asked."""
    parser = argparse.ArgumentParser(description="Time of planning and applying one decode step.")
    parser.add_argument("--num-sequences", type=int, default=256, help="sequences that decode (default 256)")
    parser.add_argument("--num-steps", type=int, default=500, help="steps that are timed (default 500)")
    parser.add_argument("--num-drafts", type=int, default=0, help="drafts of each sequence (default 0)")
    parser.add_argument("--json", type=Path, help="file to write the result to")
    arguments = parser.parse_args()
    result = measure(arguments.num_sequences, arguments.num_steps, arguments.num_drafts)
    print(f"planning and applying one decode step of {result['num_sequences']} sequences, in ms:")
    print(f"  wall clock {result['decode_wall_ms']}, processor {result['decode_cpu_ms']}")
    if arguments.num_drafts:
        print(
            f"of it the planner of {arguments.num_drafts} drafts each, processor {result['planner_waited_for_cpu_ms']}"
        )
        print(f"  with what it does while the device works {result['planner_work_cpu_ms']}")
    print(f"admitting all of them in one prefill step: {result['prefill_wall_ms']} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if arguments.num_sequences > 256:
        return 0
    is_planner_slow = arguments.num_drafts > 0 and result["planner_waited_for_cpu_ms"]["median"] >= PLANNER_LIMIT_MS
    return 1 if is_planner_slow or result["decode_cpu_ms"]["median"] >= LIMIT_MS else 0


if __name__ == "__main__":
    sys.exit(main())
