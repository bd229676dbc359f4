"""Is a sequence's result the same bits whatever runs beside it, however its prompt is cut, wherever it comes from?

    python benchmarks/invariance.py [--accelerator A] [--numerics N] [--trials 4] [--json FILE]

One fixed prompt is generated alone, greedy and at temperature 1, with log-probabilities; then again in random company,
with its prompt cut in pieces of several sizes, with steps overlapped and mixed, after preemption, and from the prefix
cache. Tokens and log-probabilities are compared bit by bit. At last the same load is timed in the usual and in the
invariant mode. Exits with 1 when a bit differs.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel, open_model

_NUM_TOKENS = 24
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "top_p": 0.95, "seed": 11},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run the prompt.

    Attributes:
        name: For the table.
        settings: Of the engine.
        company: Other requests that come with it.
        again: Run the prompt once before, so that the prefix cache has it.
    """

    name: str
    settings: dict[str, Any]
    company: int = 0
    again: bool = False


def ways(trials: int, block_bytes: int) -> Iterator[Way]:
    """All that must make no difference."""
    for trial in range(trials):
        yield Way(name=f"company {trial}", settings={}, company=1 + 7 * trial)
    for rows in (16, 100, 128):
        yield Way(name=f"prompt in pieces of {rows}", settings={"max_num_batched_tokens": rows, "max_num_seqs": 16})
    yield Way(name="overlap", settings={"overlap": "on"}, company=9)
    yield Way(name="mixed steps", settings={"step_policy": "mixed", "max_chunk_tokens": 40}, company=9)
    tight = {"kv_cache_memory_gib": 9.5 * block_bytes / 2**30, "headroom_blocks": 0}
    yield Way(name="preempted", settings=tight, company=9)
    yield Way(name="prefix hit", settings={"prefix_cache": "exact"}, again=True)
    yield Way(name="prefix hit, overlap", settings={"prefix_cache": "exact", "overlap": "on"}, company=5, again=True)


def main() -> int:
    """Compare, time, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--numerics", default="released")
    parser.add_argument("--trials", type=int, default=4, help="batches of random company (default 4)")
    parser.add_argument("--usual", action="store_true", help="compare the usual mode too; it may differ")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    invariant = open_model("tiny", accelerator=args.accelerator, numerics=args.numerics, batch_invariant=True)
    usual = open_model("tiny", accelerator=args.accelerator, numerics=args.numerics)
    rows = compare(invariant, args)
    num_different = sum(row["bits_differ"] for row in rows)
    speeds = {"usual": speed(usual), "invariant": speed(invariant)}
    for row in rows:
        print(f"{row['way']:<24}{row['kind']:<8}{'DIFFERS' if row['bits_differ'] else 'same bits'}")
    print(f"{len(rows)} comparisons, {num_different} differ")
    print(", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in speeds.items()))
    record = {
        "what": "one prompt of the tiny model in other company, other pieces, from the prefix cache: bits compared",
        "machine": dict(invariant.model.device.facts),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "numerics": args.numerics,
        "comparisons": rows,
        "tokens_per_s": speeds,
        "cost": 1 - speeds["invariant"] / speeds["usual"],
        "binding": invariant.model.report.as_json(),
    }
    if args.usual:
        record["usual_mode"] = compare(usual, args)
        print(f"usual mode: {sum(row['bits_differ'] for row in record['usual_mode'])} of {len(rows)} differ")
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if num_different else 0


def compare(opened: OpenedModel, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way against the prompt alone."""
    alone = answers(opened, Way(name="alone", settings={}), 0)
    rows = []
    for number, way in enumerate(ways(args.trials, opened.model.layout.bytes_per_block)):
        for kind, (found, facts) in answers(opened, way, number).items():
            rows.append({"way": way.name, "kind": kind, "bits_differ": found != alone[kind][0], **facts})
    return rows


def answers(opened: OpenedModel, way: Way, seed: int) -> dict[str, tuple[Any, dict[str, int]]]:
    """One kind after the other in one engine, which records its steps once."""
    engine = Engine(opened, EngineConfig(model="tiny", **{"max_num_seqs": 32, "max_model_len": 1024, **way.settings}))
    found = {}
    for kind, fields in _KINDS.items():
        params = SamplingParams(max_tokens=_NUM_TOKENS, ignore_eos=True, logprobs=5, **fields)
        found[kind] = answer(engine, way, params, random.Random(seed))
    engine.close()
    return found


def answer(engine: Engine, way: Way, params: SamplingParams, source: random.Random) -> tuple[Any, dict[str, int]]:
    """Tokens and log-probabilities of the prompt, and what shows that the way was taken."""
    prompt = [5 + (place * 7) % 900 for place in range(300)]
    before = engine.statistics().num_preemptions
    if way.again:
        engine.add("before", prompt, params)
        list(engine.run())
    others = [[source.randrange(5, 900) for _ in range(source.randint(3, 400))] for _ in range(way.company)]
    place = source.randint(0, way.company)
    for number, tokens in enumerate([*others[:place], prompt, *others[place:]]):
        engine.add("it" if number == place else f"other {number}", tokens, params)
    [found] = [record for record in engine.run() if record.finished and record.request_id == "it"]
    facts = {
        "num_preemptions": engine.statistics().num_preemptions - before,
        "num_cached_tokens": found.metrics.num_cached_tokens if found.metrics is not None else 0,
    }
    return (found.outputs[0].token_ids, found.outputs[0].logprobs), facts


def speed(opened: OpenedModel, count: int = 32, steps: int = 32) -> float:
    """Tokens per second of sequences that decode together, prompts included; the best of three runs."""
    rates = []
    for _ in range(3):
        engine = Engine(opened, EngineConfig(model="tiny", max_num_seqs=count, max_model_len=512))
        for number in range(count):
            prompt = [5 + (place * 7 + number) % 900 for place in range(64)]
            engine.add(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True))
        began = time.perf_counter()
        list(engine.run())
        rates.append(count * steps / (time.perf_counter() - began))
        engine.close()
    return max(rates)


if __name__ == "__main__":
    sys.exit(main())
