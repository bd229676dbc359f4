"""Do two accelerators give the same tokens? Every held-out prompt of the tiny model, greedy, on both.

    python benchmarks/same_tokens.py [--accelerators cpu cuda] [--json FILE]

Where two answers part, the two tokens in question are shown with the log-probabilities that each side gave them: of two
right implementations they are nearly tied. Exits with 1 when fewer than 95 % of the answers are equal, or when two
answers part at a gap above the tolerance.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HELDOUT = Path(__file__).resolve().parent.parent / "tests/data/eval_heldout.jsonl"
LEAST_SHARE = 0.95
TIE = 0.125
"""Largest difference of log-probability of the two tokens, on either side, that still counts as a tie: some steps of
bf16 at the size of the model's logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two answers part.

    Attributes:
        prompt: Number of the prompt.
        task: Its task.
        position: Tokens that are equal before.
        tokens: The token of each side.
        gaps: On each side, log-probability of its own token minus that of the other side's (None: not among the best).
    """

    prompt: int
    task: str
    position: int
    tokens: tuple[int, int]
    gaps: tuple[float | None, float | None]

    @property
    def is_tie(self) -> bool:
        return all(gap is not None and gap <= TIE for gap in self.gaps)


def main() -> int:
    """Generate on both, compare, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerators", nargs=2, default=["cpu", "cuda"])
    parser.add_argument("--numerics", default="released")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    items = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    first, second = (answers(items, name, args) for name in args.accelerators)
    partings = [
        parting
        for number, item in enumerate(items)
        if (parting := part(number, item["task"], first[0][number], second[0][number])) is not None
    ]
    share = 1 - len(partings) / len(items)
    print(f"{args.accelerators[0]} and {args.accelerators[1]}: {100 * share:.1f} % of {len(items)} answers are equal")
    for parting in partings:
        print(f"  {asdict(parting)}{'' if parting.is_tie else '  NOT A TIE'}")
    if args.json:
        record = {
            "what": "greedy answers to the held-out prompts of the tiny model on two accelerators",
            "accelerators": args.accelerators,
            "numerics": args.numerics,
            "share_equal": share,
            "partings": [asdict(parting) | {"is_tie": parting.is_tie} for parting in partings],
            "bindings": [first[1], second[1]],
            "python": platform.python_version(),
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if share >= LEAST_SHARE and all(parting.is_tie for parting in partings) else 1


def answers(items: list[dict[str, Any]], accelerator: str, args: argparse.Namespace) -> tuple[list[Any], Any]:
    """Completions with the best alternatives of every token, and the binding report."""
    from deepinfer_core import LLM, SamplingParams

    with LLM("tiny", accelerator=accelerator, numerics=args.numerics, max_num_seqs=args.max_num_seqs) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=128, logprobs=5)
        outputs = llm.generate([item["prompt"] for item in items], params)
        return [output.outputs[0] for output in outputs], llm.binding_report.as_json()


def part(number: int, task: str, first: Any, second: Any) -> Parting | None:
    """The first place where two completions differ, or None."""
    pairs = list(zip(first.token_ids, second.token_ids, strict=False))
    position = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return None
    tokens = pairs[position]
    gaps = (_gap(first.logprobs[position], *tokens), _gap(second.logprobs[position], *reversed(tokens)))
    return Parting(prompt=number, task=task, position=position, tokens=tokens, gaps=gaps)


def _gap(alternatives: Any, own: int, other: int) -> float | None:
    if other not in alternatives:
        return None
    return float(alternatives[own].logprob - alternatives[other].logprob)


if __name__ == "__main__":
    sys.exit(main())
