"""How fast the tiny model runs on the CPU: opening it, a prompt, and decode steps of one and of many sequences.

    python benchmarks/cpu_tiny.py [--threads N] [--contexts 32 600] [--json FILE]

Steps go straight through the executor: no scheduler, no sampling but the largest logit. Every figure is the best of
several runs, because noise of a shared machine only adds.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.batch import NO_COMPRESSED_ID, SequenceRows
from deepinfer_core.runtime.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepinfer_core.runtime.model import BoundModel

TARGETS = {"decode 1": 60.0, "decode 32": 600.0, "prefill": 4000.0}
"""Tokens per second on two calm cores that the project promises."""


def main() -> int:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (default: its own choice)")
    parser.add_argument("--numerics", default="released", help="arithmetic (default released)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32], help="decode batches (default 1 32)")
    parser.add_argument("--contexts", type=int, nargs="+", default=[32, 600], help="tokens before (default 32 600)")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of the prompt (default 1500)")
    parser.add_argument("--steps", type=int, default=30, help="decode steps of each measurement (default 30)")
    parser.add_argument("--repeats", type=int, default=5, help="prompts, and runs of the decode steps (default 5)")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    result = measure(args)
    print_table(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every figure, with what is needed to understand it."""
    start = time.perf_counter()
    model = open_model("tiny", accelerator="cpu", numerics=args.numerics).model
    load_s = time.perf_counter() - start
    rates = {f"prefill, {args.prompt} tokens": prefill_rate(model, args.prompt, args.repeats)}
    for count in args.sequences:
        for context in args.contexts:
            name = f"decode {count}, after {context} tokens"
            rates[name] = decode_rate(model, count, context, args.steps, args.repeats)
    return {
        "what": "tokens per second of the tiny model through the executor, all sequences together",
        "method": f"best of {args.repeats}; {args.steps} decode steps at a time, greedy",
        "machine": machine(model),
        "versions": versions(),
        "numerics": args.numerics,
        "load_s": round(load_s, 3),
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "targets_two_calm_cores": TARGETS,
        "binding": model.report.as_json(),
    }


@dataclass
class Sequences:
    """Sequences of made-up tokens, all of the same length, each with its own blocks and state slot."""

    model: BoundModel
    count: int
    longest: int
    tokens: list[int] = field(init=False)
    compressed: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [5 + (place * 7) % 900 for place in range(self.longest)]
        known = self.model.compressed_map
        self.compressed = [known[token] if known else NO_COMPRESSED_ID for token in self.tokens]
        self._blocks = -(-self.longest // BLOCK_TOKENS)
        self.executor = Executor(self.model, self.model.allocate(self.count * self._blocks, self.count))

    def rows(self, number: int, start: int, stop: int) -> SequenceRows:
        """Tokens ``start .. stop - 1`` of one sequence."""
        first_block = 1 + number * self._blocks
        return SequenceRows(
            token_ids=self.tokens[start:stop],
            compressed_ids=self.compressed[start:stop],
            start=start,
            ngram_history=list(reversed(self.compressed[max(start - self.model.lookback, 0) : start])),
            state_slot=1 + number,
            blocks=range(first_block, first_block + self._blocks),
        )

    def prefill(self, length: int) -> None:
        """The first tokens of every sequence, one sequence after the other."""
        for number in range(self.count):
            self.executor.run([self.rows(number, 0, length)], prefill=True)

    def decode(self, position: int) -> None:
        """One more token of every sequence."""
        rows = [self.rows(number, position, position + 1) for number in range(self.count)]
        hidden, _ = self.executor.run(rows, prefill=False)
        self.model.sampler.greedy(self.executor.logits(hidden))


def prefill_rate(model: BoundModel, length: int, repeats: int) -> float:
    """Tokens per second of one prompt."""
    sequences = Sequences(model, 1, length)
    sequences.prefill(length)
    return length / best(lambda: sequences.prefill(length), repeats)


def decode_rate(model: BoundModel, count: int, context: int, steps: int, repeats: int) -> float:
    """Tokens per second of all sequences together."""
    sequences = Sequences(model, count, context + steps)
    sequences.prefill(context)

    def run() -> None:
        for position in range(context, context + steps):
            sequences.decode(position)

    run()
    return count * steps / best(run, repeats)


def best(work: Callable[[], None], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest run, by a clock."""

    def seconds() -> float:
        start = clock()
        work()
        return clock() - start

    return min(seconds() for _ in range(repeats))


def machine(model: BoundModel) -> dict[str, Any]:
    """Processor, its facts, and the threads that were used."""
    return {
        **model.device.facts,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def versions() -> dict[str, str]:
    """What was measured."""
    import deepinfer_core

    return {
        "deepinfer_core": deepinfer_core.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def print_table(result: dict[str, Any]) -> None:
    """The figures for people."""
    facts, counts = result["machine"], result["binding"]["counts"]
    print(f"{facts['name']} ({facts['instructions']}), {facts['threads']} threads, torch {result['versions']['torch']}")
    print(f"bf16 products: {facts['bf16_products']}, row-invariant products: {facts['row_invariant_products']}")
    print(", ".join(f"{number} ops {outcome}" for outcome, number in counts.items()))
    print(f"{'open':<32} {result['load_s']:8.2f} s")
    for name, rate in result["tokens_per_s"].items():
        print(f"{name:<32} {rate:8.1f} tokens/s")


if __name__ == "__main__":
    sys.exit(main())
