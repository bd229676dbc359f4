"""Do two accelerators give the same tokens? Every held-out prompt of the tiny model, greedy, on both.

    python benchmarks/same_tokens.py [--accelerators cpu cuda] [--first FILE] [--json FILE]

The first side's answers are kept in a file if one is named, and read from it when it is there: the two sides need not
be on one machine.

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
    parser.add_argument("--first", type=Path, help="file of the first side's answers, read or written")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    items = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    first = kept_answers(items, args)
    if args.accelerators[1] == "none":
        return 0
    second = answers(items, args.accelerators[1], args)
    partings = [
        parting
        for number, item in enumerate(items)
        if (parting := part(number, item["task"], first["answers"][number], second["answers"][number])) is not None
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
            "sides": [{name: value for name, value in side.items() if name != "answers"} for side in (first, second)],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if share >= LEAST_SHARE and all(parting.is_tie for parting in partings) else 1


def kept_answers(items: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """The first side's answers, from the file if it is there."""
    if args.first and args.first.exists():
        return json.loads(args.first.read_text(encoding="utf-8"))
    made = answers(items, args.accelerators[0], args)
    if args.first:
        args.first.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return made


def answers(items: list[dict[str, Any]], accelerator: str, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens of every answer with the best alternatives of each, and what they were made with."""
    import torch

    from deepinfer_core import LLM, SamplingParams

    with LLM("tiny", accelerator=accelerator, numerics=args.numerics, max_num_seqs=args.max_num_seqs) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=128, logprobs=5)
        outputs = llm.generate([item["prompt"] for item in items], params)
        return {
            "accelerator": accelerator,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "binding": llm.binding_report.as_json(),
            "answers": [_answer(output.outputs[0]) for output in outputs],
        }


def _answer(completion: Any) -> list[dict[str, Any]]:
    """Each token with the log-probabilities of the best ones, by token."""
    return [
        {"token": token, "best": {str(other): entry.logprob for other, entry in best.items()}}
        for token, best in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


def part(number: int, task: str, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Parting | None:
    """The first place where two answers differ, or None."""
    pairs = list(zip(first, second, strict=False))
    position = next((place for place, (a, b) in enumerate(pairs) if a["token"] != b["token"]), None)
    if position is None:
        return None
    sides = pairs[position]
    tokens = (sides[0]["token"], sides[1]["token"])
    gaps = (_gap(sides[0]["best"], *tokens), _gap(sides[1]["best"], *reversed(tokens)))
    return Parting(prompt=number, task=task, position=position, tokens=tokens, gaps=gaps)


def _gap(best: dict[str, float], own: int, other: int) -> float | None:
    return best[str(own)] - best[str(other)] if str(own) in best and str(other) in best else None


if __name__ == "__main__":
    sys.exit(main())
