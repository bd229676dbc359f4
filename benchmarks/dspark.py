"""Speculative decoding: throughput of no, fixed and adaptive drafts from one to hundreds of sequences.

    python benchmarks/dspark.py heldout [--sequences 1 4 16 ...] [--json FILE] [--plot PREFIX]
    python benchmarks/dspark.py slice --blocks FILE [--sequences ...] [--context 1024] [--json FILE] [--plot PREFIX]
    python benchmarks/dspark.py blocks --out FILE [--temperature T]
    python benchmarks/dspark.py plot --json FILE... --plot PREFIX

``heldout`` runs the tiny model on its held-out prompts: everything is real. ``slice`` runs eight layers at released
widths with random weights and the draft module's real work, and SIMULATES which drafts stand by blocks that ``blocks``
has recorded with the tiny model (of one task for a while, in random order). Only decode steps count, planning
included; steps in which a graph was recorded are listed and do not count. All ways of drafting take turns of a few
steps; the ratio of a repeat is the adaptive throughput over the best of the others in that repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]
from dspark_load import MODES, Run, run_heldout, run_simulated  # noqa: E402 - beside this file
from dspark_plot import plot_acceptance, plot_throughput, plot_timeline  # noqa: E402
from dspark_traces import read_blocks, record_blocks, write_blocks  # noqa: E402

from deepinfer_core.config.speculation import DraftSettings, SpeculativeConfig  # noqa: E402
from deepinfer_core.engine.machine import describe_machine, describe_versions  # noqa: E402
from deepinfer_core.engine.opening import OpenedModel, open_model  # noqa: E402

_FILES = ("json", "plot", "blocks", "out")
"""Options that name places on the machine, which are nobody's business."""
_SEQUENCES = (1, 4, 16, 64, 128, 256)
Measure = Callable[[Sequence[str], int], Mapping[str, Run]]
"""Runs every way of drafting with so many sequences."""


def main() -> int:
    """Measure, print and write what is asked for."""
    args = _arguments()
    if args.command == "blocks":
        opened = open_model("tiny", accelerator=args.accelerator, speculation=SpeculativeConfig(verification="fixed"))
        blocks = record_blocks(opened, temperature=args.temperature)
        write_blocks(blocks, args.out)
        accepted = statistics.mean(block.num_accepted for block in blocks)
        print(f"{len(blocks)} blocks, {accepted:.2f} of {len(blocks[0].logits)} drafts accepted on average")
        return 0
    if args.command == "plot":
        records = [json.loads(file.read_text(encoding="utf-8")) for file in args.json]
        _plot([found for record in records for found in record["points"]], records[0], args.plot)
        return 0
    opened, measure = _heldout(args) if args.command == "heldout" else _slice(args)
    found: list[dict[str, Any]] = []
    record = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": args.command,
        "acceptance": "real" if args.command == "heldout" else "SIMULATED from recorded blocks of the tiny model",
        "configuration": {name: str(value) for name, value in vars(args).items() if name not in _FILES},
        "points": found,
        "machine": describe_machine() | {"device": opened.model.device.facts["name"]},
        "versions": describe_versions(opened.model.report.backend),
        "binding": opened.model.report.as_json(),
    }
    for sequences in args.sequences:
        found.append(point(sequences, args.repeats, measure, args.modes))
        if args.json:  # after each, so that what is interrupted is not lost
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        _plot(found, record, args.plot)
    return 0


def _plot(points: Sequence[dict[str, Any]], record: dict[str, Any], prefix: str) -> None:
    title = f"{record['command']}, {record['machine']['device']}; acceptance {record['acceptance']}"
    plot_throughput(points, f"{prefix}_throughput.png", title)
    plot_acceptance(points, f"{prefix}_verified.png", title)
    plot_timeline(points, f"{prefix}_timeline.png", title)


def point(sequences: int, repeats: int, measure: Measure, modes: Sequence[str]) -> dict[str, Any]:
    """Every way of drafting at one number of sequences."""
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    for _ in range(repeats):
        for mode, run in measure(modes, sequences).items():
            runs[mode].append(run)
    rates = {mode: [run.tokens_per_s for run in found] for mode, found in runs.items()}
    others = [mode for mode in modes if mode != "adaptive"]
    ratios = [rates["adaptive"][repeat] / max(rates[mode][repeat] for mode in others) for repeat in range(repeats)]
    medians = {mode: statistics.median(values) for mode, values in rates.items()}
    best = max(others, key=lambda mode: medians[mode])
    result = {
        "sequences": sequences,
        "tokens_per_s": medians,
        "best_other": best,
        "adaptive_to_best": medians["adaptive"] / medians[best],
        "adaptive_to_best_by_repeat": ratios,
        "modes": {mode: _summary(found) for mode, found in runs.items()},
    }
    print(
        f"{sequences:4d} sequences: "
        + ", ".join(f"{mode} {medians[mode]:.0f}" for mode in modes)
        + f" tokens/s; adaptive / {best}: {result['adaptive_to_best']:.3f}",
        flush=True,
    )
    adaptive = result["modes"]["adaptive"]
    print(
        f"     adaptive: {adaptive['verified_per_block']:.2f} verified and {adaptive['tokens_per_block']:.2f} tokens a "
        f"block, {adaptive['steps_with_drafts']:.0%} of steps with drafts, plan {adaptive['plan_ms_median']:.3f} ms",
        flush=True,
    )
    return result


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Of all repeats together; the time line is of the last."""
    last = runs[-1]
    blocks = sum(row[0] for run in runs for row in run.by_task.values())
    plans = [seconds for run in runs for seconds in run.plan_s]
    with_drafts = sum(run.num_with_drafts for run in runs)
    return {
        "tokens_per_s": [run.tokens_per_s for run in runs],
        "tokens_per_step": sum(run.num_tokens for run in runs) / max(sum(run.num_steps for run in runs), 1),
        "rows_per_step": sum(run.num_rows for run in runs) / max(sum(run.num_steps for run in runs), 1),
        "verified_per_block": sum(run.num_verified for run in runs) / max(blocks, 1),
        "tokens_per_block": 1 + sum(run.num_accepted for run in runs) / max(blocks, 1),
        "steps_with_drafts": with_drafts / max(sum(run.num_steps for run in runs), 1),
        "recorded_s": [round(seconds, 3) for run in runs for seconds in run.recorded_s],
        "plan_ms_median": 1e3 * statistics.median(plans) if plans else 0.0,
        "by_task": {
            task: {"blocks": row[0], "verified": row[1] / row[0], "accepted": row[2] / row[0]}
            for task, row in sorted(last.by_task.items())
        },
        "rows_timeline": last.timeline[:400],
        "step_ms_timeline": [round(1e3 * seconds, 2) for seconds in last.step_s[:400]],
    }


def _heldout(args: argparse.Namespace) -> tuple[OpenedModel, Measure]:
    speculation = SpeculativeConfig(verification="fixed", acceptance=args.acceptance)
    opened = open_model("tiny", accelerator=args.accelerator, speculation=speculation)

    def measure(modes: Sequence[str], sequences: int) -> dict[str, Run]:
        number = max(args.rounds * sequences, args.requests)
        return run_heldout(opened, modes, sequences, num_requests=number, temperature=args.temperature)

    return opened, measure


def _slice(args: argparse.Namespace) -> tuple[OpenedModel, Measure]:
    from slice import open_slice

    draft = DraftSettings(num_drafts=5, is_coupled=True, is_adaptive=False, temperatures=(1.0,) * 5)
    model = open_slice(args.accelerator, draft=draft)
    opened = OpenedModel(folder=Path(tempfile.mkdtemp()), model=model, tokenizer=None)
    blocks = read_blocks(args.blocks)

    def measure(modes: Sequence[str], sequences: int) -> dict[str, Run]:
        return run_simulated(opened, modes, sequences, blocks, context=args.context, num_steps=args.steps)

    return opened, measure


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    plot = commands.add_parser("plot")
    plot.add_argument("--json", type=Path, nargs="+", required=True, help="what heldout or slice wrote")
    plot.add_argument("--plot", required=True, help="beginning of the names of PNG files")
    for name in ("heldout", "slice", "blocks"):
        command = commands.add_parser(name)
        command.add_argument("--accelerator", default="auto")
        command.add_argument("--temperature", type=float, default=1.0)
        if name == "blocks":
            command.add_argument("--out", type=Path, required=True)
            continue
        command.add_argument("--sequences", type=int, nargs="*", default=_SEQUENCES)
        command.add_argument("--modes", nargs="*", default=list(MODES))
        command.add_argument("--repeats", type=int, default=3)
        command.add_argument("--json", type=Path, help="file for the result")
        command.add_argument("--plot", help="beginning of the names of PNG files")
        if name == "heldout":
            command.add_argument("--requests", type=int, default=48, help="requests at least")
            command.add_argument("--rounds", type=int, default=2, help="requests for each sequence at once")
            command.add_argument("--acceptance", default="rejection")
        else:
            command.add_argument("--blocks", type=Path, required=True, help="what the command blocks wrote")
            command.add_argument("--context", type=int, default=1024)
            command.add_argument("--steps", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
