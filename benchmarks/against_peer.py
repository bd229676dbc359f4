"""The tiny model here and in NeMo AutoModel, one after the other on the same machine: rates and their ratios.

    python benchmarks/against_peer.py --peer-python PATH [--threads N] [--json FILE]

PATH is the Python of the peer's own environment (peers/README.md). Ours goes through the whole engine: scheduler,
model, sampler, text. Exits with 1 when a ratio is below its target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peers.workload import MEASUREMENTS, REPEATS, Measurement, contexts

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.engine.opening import OpenedModel, open_model

PEER = Path(__file__).resolve().parent / "peers" / "automodel.py"


def main() -> int:
    """Measure both, print the table, write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, required=True, help="Python of the peer's environment")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch on both sides (default: its choice)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"timings of each figure (default {REPEATS})")
    parser.add_argument("--peer-dtypes", nargs="+", default=[], help="arithmetics of the peer (default all it has)")
    parser.add_argument("--numerics", default="released", help="our arithmetic (default released)")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    opened = open_model("tiny", accelerator="cpu", numerics=args.numerics)
    ours = {measurement.name: measure(opened, measurement, args.repeats) for measurement in MEASUREMENTS}
    peer = run_peer(args.peer_python, args.repeats, args.peer_dtypes)
    rows = [compare(measurement, ours, peer["figures"]) for measurement in MEASUREMENTS]
    print_table(rows, peer)
    if args.json:
        args.json.write_text(json.dumps(describe(args, opened, rows, peer), indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in rows) else 1


def measure(opened: OpenedModel, measurement: Measurement, repeats: int) -> dict[str, Any]:
    """Our rate of one figure, and the tokens that were generated; the first run is a warm-up."""
    run(opened, measurement)
    runs = [run(opened, measurement) for _ in range(repeats)]
    seconds = [taken for taken, _ in runs]
    return {
        "tokens_per_s": round(measurement.num_timed_tokens / min(seconds), 3),
        "seconds": [round(taken, 4) for taken in seconds],
        "token_ids": runs[-1][1],
    }


def run(opened: OpenedModel, measurement: Measurement) -> tuple[float, list[list[int]]]:
    """Seconds of the part that counts, and the tokens of every sequence."""
    given = contexts(measurement)
    longest = measurement.context_tokens + measurement.num_tokens + 1
    config = EngineConfig(model="tiny", max_num_seqs=len(given), max_model_len=longest)
    engine = Engine(opened, config)
    params = SamplingParams(temperature=0.0, max_tokens=measurement.num_tokens + 1, ignore_eos=True)
    for number, token_ids in enumerate(given):
        engine.add(str(number), token_ids, params)
    tokens: dict[str, list[int]] = {}

    def step() -> None:
        tokens.update((output.request_id, list(output.outputs[0].token_ids)) for output in engine.step())

    began = time.perf_counter()
    while engine.statistics().num_generated_tokens < len(given):
        step()
    if measurement.num_tokens:
        began = time.perf_counter()
        while engine.has_unfinished:
            step()
    seconds = time.perf_counter() - began
    return seconds, [tokens[str(number)] for number in range(len(given))]


def run_peer(python: Path, repeats: int, dtypes: list[str]) -> dict[str, Any]:
    """What the peer prints, with as many threads as we have."""
    options = ["--threads", str(torch.get_num_threads()), "--repeats", str(repeats)]
    options += ["--dtypes", *dtypes] if dtypes else []
    done = subprocess.run([python, PEER, *options], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{PEER.name} failed in the environment of {python}: see peers/README.md for how to make it")
    return json.loads(done.stdout)


def compare(measurement: Measurement, ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    mine, other = ours[measurement.name], peer[measurement.name]
    ratio = mine["tokens_per_s"] / other["tokens_per_s"]
    pairs = zip(mine["token_ids"], other["token_ids"], strict=True)
    return {
        "name": measurement.name,
        "tokens_per_s": mine["tokens_per_s"],
        "peer_tokens_per_s": other["tokens_per_s"],
        "ratio": round(ratio, 2),
        "target_ratio": measurement.target_ratio,
        "passed": measurement.target_ratio is None or ratio >= measurement.target_ratio,
        "num_sequences": measurement.num_sequences,
        "num_sequences_with_equal_tokens": sum(a == b for a, b in pairs),
        "seconds": mine["seconds"],
        "peer_seconds": other["seconds"],
        "peer_dtype": other["dtype"],
    }


def describe(
    args: argparse.Namespace, opened: OpenedModel, rows: list[dict[str, Any]], peer: dict[str, Any]
) -> dict[str, Any]:
    """The result with what is needed to understand it."""
    return {
        "what": "tokens per second of the tiny model, all sequences together, here and in NeMo AutoModel",
        "method": f"greedy; the best of {args.repeats} timings on each side, of the peer the faster arithmetic",
        "passed": all(row["passed"] for row in rows),
        "figures": rows,
        "numerics": args.numerics,
        "machine": describe_machine(),
        "versions": describe_versions("cpu"),
        "peer": {name: value for name, value in peer.items() if name != "figures"},
        "binding": opened.model.report.as_json(),
    }


def print_table(rows: list[dict[str, Any]], peer: dict[str, Any]) -> None:
    """The figures for people."""
    facts, versions = describe_machine(), peer["versions"]
    print(f"{facts['processor']}, {facts['torch_threads']} threads, torch {torch.__version__}")
    print(f"the peer: NeMo AutoModel {versions['nemo-automodel']}, eager, torch {versions['torch']}")
    print(f"{'tokens/s':<40} {'here':>9} {'peer':>9} {'ratio':>8} {'target':>7}  {'same tokens':>11}  peer's dtype")
    for row in rows:
        target = f"{row['target_ratio']:.0f}" if row["target_ratio"] else "-"
        same = f"{row['num_sequences_with_equal_tokens']} of {row['num_sequences']}"
        print(
            f"{row['name']:<40} {row['tokens_per_s']:>9.1f} {row['peer_tokens_per_s']:>9.2f} {row['ratio']:>8.1f} "
            f"{target:>7}  {same:>11}  {row['peer_dtype']}"
        )


if __name__ == "__main__":
    sys.exit(main())
