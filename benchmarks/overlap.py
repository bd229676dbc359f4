"""What overlap is worth: how long the device idles between decode steps, with and without.

    python benchmarks/overlap.py [--model tiny|slice] [--accelerator A] [--sequences 64] [--context 8192]
                                 [--steps 200] [--json FILE] [--plot FILE]

All sequences decode together, through the whole engine. On a device that works behind the host, its idle time is what
lies between the end of one step's work and the start of the next one's on the device's own clock. On the CPU nothing
can idle: there both ways take turns step by step, so that both meet the same machine, and their steps are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent)]
from slice import open_slice  # noqa: E402 - beside this file

from deepinfer_core import EngineConfig, SamplingParams  # noqa: E402
from deepinfer_core.engine.engine import Engine  # noqa: E402
from deepinfer_core.engine.opening import OpenedModel, open_model  # noqa: E402
from deepinfer_core.engine.step_runner import StepExecutor  # noqa: E402
from deepinfer_core.runtime.batch import SequenceRows  # noqa: E402
from deepinfer_core.runtime.executor import HiddenRows  # noqa: E402

_SHOWN_STEPS = 6


@dataclass
class Watched:
    """Runs the model, and marks where the work of each decode step begins and ends.

    Attributes:
        marks: Of each decode step: device events around its work, and the host's times of launching it.
    """

    inner: StepExecutor
    uses_events: bool
    marks: list[dict[str, Any]] = field(default_factory=list)

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:
        if prefill:
            return self.inner.forward(sequences, prefill=True)
        mark: dict[str, Any] = {"host_begin": time.perf_counter(), "rows": len(sequences), "begin": self._event()}
        hidden = self.inner.forward(sequences, prefill=False)
        mark["host_forward"] = time.perf_counter()
        self.marks.append(mark)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner.logits(hidden)

    def sampled(self) -> None:
        """Mark the end of a step's work; called behind the sampling."""
        if self.marks and "end" not in self.marks[-1]:
            self.marks[-1]["end"] = self._event()
            self.marks[-1]["host_end"] = time.perf_counter()

    def remember(self, token_ids: torch.Tensor, slots: Sequence[int]) -> None:
        self.inner.remember(token_ids, slots)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.inner.copy_slots(pairs)

    def _event(self) -> Any:
        if not self.uses_events:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def main() -> int:
    """Measure, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "slice"), default="tiny")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--context", type=int, default=64, help="tokens of each prompt (default 64)")
    parser.add_argument("--steps", type=int, default=200, help="decode steps (default 200)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, alternating (default 3)")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", type=Path, help="PNG file for the time line")
    args = parser.parse_args()
    opened = _opened(args)
    runs: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    for repeat in range(args.repeats):
        if opened.model.is_asynchronous:
            both = {overlap: measure(opened, args, overlap) for overlap in runs}
        else:
            both = measure_in_turns(opened, args)
        for overlap, run in both.items():
            runs[overlap].append(run)
            print(f"run {repeat} overlap {overlap}: {summary(run)}", flush=True)
    record = result(opened, args, runs)
    print(json.dumps({name: record[name] for name in ("off", "on", "tokens_are_equal")}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(runs, args.plot, record["machine"]["name"])
    return 0 if record["tokens_are_equal"] else 1


def _opened(args: argparse.Namespace) -> OpenedModel:
    if args.model == "tiny":
        return open_model("tiny", accelerator=args.accelerator)
    return OpenedModel(folder=Path(tempfile.mkdtemp()), model=open_slice(args.accelerator), tokenizer=None)


def measure(opened: OpenedModel, args: argparse.Namespace, overlap: str) -> dict[str, Any]:
    """One run: every prompt, then the decode steps that all sequences share."""
    engine, executor = prepare(opened, args, overlap)
    began = time.perf_counter()
    tokens = {record.request_id: record.outputs[0].token_ids for record in engine.run() if record.finished}
    seconds = time.perf_counter() - began
    engine.close()
    return {"marks": _times(executor.marks, args.sequences), "tokens": tokens, "run_s": seconds}


def measure_in_turns(opened: OpenedModel, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """A run of each kind, one step of the one after one step of the other."""
    engines = {overlap: prepare(opened, args, overlap)[0] for overlap in ("off", "on")}
    found: dict[str, dict[str, Any]] = {overlap: {"marks": [], "tokens": {}, "step_s": []} for overlap in engines}
    turns = list(engines.items())
    while any(engine.has_unfinished for engine in engines.values()):
        turns.reverse()
        for overlap, engine in turns:
            began = time.perf_counter()
            records = engine.step() if engine.has_unfinished else []
            found[overlap]["step_s"].append(time.perf_counter() - began)
            found[overlap]["tokens"] |= {r.request_id: r.outputs[0].token_ids for r in records if r.finished}
    for overlap, engine in engines.items():
        engine.close()
        found[overlap]["run_s"] = sum(found[overlap]["step_s"])
    return found


def prepare(opened: OpenedModel, args: argparse.Namespace, overlap: str) -> tuple[Engine, Watched]:
    """An engine with all prompts queued, and what notes its decode steps."""
    watched: list[Watched] = []

    def wrap(inner: StepExecutor) -> Watched:
        watched.append(Watched(inner, opened.model.is_asynchronous))
        return watched[-1]

    config = EngineConfig(
        model=args.model,
        max_num_seqs=args.sequences,
        max_model_len=args.context + args.steps + 8,
        overlap=overlap,
        max_prefill_steps_in_a_row=10**6,
    )
    engine = Engine(opened, config, wrap_executor=wrap)
    [executor] = watched
    launch = engine._runner.sample  # noqa: SLF001 - nothing else is called at the end of a step

    def sample(*arguments: Any) -> None:
        launch(*arguments)
        executor.sampled()

    engine._runner.sample = sample  # noqa: SLF001
    vocabulary = min(opened.model.architecture.vocab_size, 900)
    for number in range(args.sequences):
        prompt = [5 + (place * 7 + number) % (vocabulary - 5) for place in range(args.context)]
        engine.add(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=args.steps, ignore_eos=True))
    return engine, executor


def _times(marks: list[dict[str, Any]], sequences: int) -> list[dict[str, float]]:
    """Milliseconds of each full decode step on both clocks; the device's from the first step's begin."""
    full = [mark for mark in marks if mark["rows"] == sequences and "end" in mark]
    full = full[len(full) // 10 :]
    if not full:
        return []
    if full[0]["begin"] is not None:
        torch.cuda.synchronize()
    first, origin = full[0]["begin"], full[0]["host_begin"]
    found = []
    for mark in full:
        row = {name: 1000 * (mark[name] - origin) for name in ("host_begin", "host_forward", "host_end")}
        if first is not None:
            row |= {name: first.elapsed_time(mark[name]) for name in ("begin", "end")}
        found.append(row)
    return found


def summary(run: dict[str, Any]) -> dict[str, float]:
    """Medians over the decode steps of a run."""
    marks = run["marks"]
    if "step_s" in run:
        return {"step_ms": round(1e3 * statistics.median(run["step_s"]), 4), "run_s": round(run["run_s"], 3)}
    times = [after["host_begin"] - before["host_begin"] for before, after in pairwise(marks)]
    found = {"step_ms": round(statistics.median(times), 4), "run_s": round(run["run_s"], 3)}
    if marks and "begin" in marks[0]:
        idle = [after["begin"] - before["end"] for before, after in pairwise(marks)]
        busy = [mark["end"] - mark["begin"] for mark in marks]
        whole = marks[-1]["end"] - marks[0]["begin"]
        found |= {
            "idle_ms": round(statistics.median(idle), 4),
            "busy_ms": round(statistics.median(busy), 4),
            "idle_share": round(sum(idle) / whole, 5),
            "host_ms": round(statistics.median(m["host_end"] - m["host_begin"] for m in marks), 4),
        }
    return found


def result(opened: OpenedModel, args: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The best run of each kind, or all steps where both took turns, and whether the tokens were the same."""
    method = f"best of {args.repeats} runs of each kind by median step"
    best = {name: min((summary(run) for run in found), key=lambda s: s["step_ms"]) for name, found in runs.items()}
    if not opened.model.is_asynchronous:
        method = f"median of all steps of {args.repeats} runs in which both kinds take turns step by step"
        best = {name: _pooled(found) for name, found in runs.items()}
    tokens = [run["tokens"] for found in runs.values() for run in found]
    return {
        "what": f"decode steps of {args.sequences} sequences of the model {args.model} through the whole engine",
        "method": f"{method}; prompts of {args.context} tokens, greedy",
        "machine": dict(opened.model.device.facts),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        **best,
        "runs": {name: [summary(run) for run in found] for name, found in runs.items()},
        "tokens_are_equal": all(found == tokens[0] for found in tokens),
        "binding": opened.model.report.as_json(),
    }


def _pooled(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The steps of several runs together."""
    return summary(
        {"marks": [], "step_s": [s for run in runs for s in run["step_s"]], "run_s": sum(r["run_s"] for r in runs)}
    )


def plot(runs: dict[str, list[dict[str, Any]]], file: Path, machine: str) -> None:
    """Some steps of each kind: what the device does, and when the host prepares it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, figsize=(10, 4), sharex=True)
    for axis, (name, found) in zip(axes, runs.items(), strict=True):
        marks = found[-1]["marks"][:_SHOWN_STEPS]
        for number, mark in enumerate(marks):
            colour = ("tab:blue", "tab:orange")[number % 2]
            if "begin" in mark:
                axis.barh("device", mark["end"] - mark["begin"], left=mark["begin"], color=colour)
            axis.barh("host", mark["host_forward"] - mark["host_begin"], left=mark["host_begin"], color=colour)
        axis.set_title(f"overlap {name}", loc="left", fontsize=10)
    axes[-1].set_xlabel(f"ms since the first of {_SHOWN_STEPS} decode steps, {machine}")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
