"""What adaptive lengths leave out: verified drafts and tokens of a step against fixed 5, at different prices of a row.

    python benchmarks/dspark_verified.py [--temperature T] [--prices 0.001 0.01 ...] [--json FILE] [--plot FILE]

The tiny model answers all held-out prompts, 64 at once; drafts, confidences and what becomes of them are real. What is
invented is the machine: a step takes 1 + price * rows and drafts 0.1, whatever it took here, so that every run chooses
the same lengths. Means over steps weigh prompts by the length of their answers; means over prompts do not, as in the
table that comes with the tiny model (its 3.75 accepted tokens per step).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]
from dspark_traces import answer_all, heldout  # noqa: E402 - beside this file

from deepinfer_core import EngineConfig  # noqa: E402
from deepinfer_core.config.speculation import SpeculativeConfig  # noqa: E402
from deepinfer_core.engine import assembly  # noqa: E402
from deepinfer_core.engine.engine import Engine  # noqa: E402
from deepinfer_core.engine.launched_step import EntryTokens  # noqa: E402
from deepinfer_core.engine.machine import describe_machine, describe_versions  # noqa: E402
from deepinfer_core.engine.opening import OpenedModel, open_model  # noqa: E402
from deepinfer_core.engine.request import Request  # noqa: E402
from deepinfer_core.scheduler.draft_budget import AdaptiveLengths, FixedLengths  # noqa: E402
from deepinfer_core.scheduler.drafts import DraftPlanner, StepTiming  # noqa: E402
from deepinfer_core.scheduler.step_plan import SequencePlan  # noqa: E402
from deepinfer_core.scheduler.step_time import StepTimeModel  # noqa: E402

NUM_DRAFTS = 5
SEQUENCES = 64
MAX_ROWS = SEQUENCES * (1 + NUM_DRAFTS)
PRICES = (0.0005, 0.002, 0.005, 0.006, 0.007, 0.0075, 0.008, 0.0085, 0.009, 0.0095, 0.01, 0.015)
FEWER, SHORTER = 0.25, 0.03
"""The goal: so many fewer drafts verified, at most so many fewer tokens of a step."""


class Priced(StepTimeModel):
    """Prices that no step changes."""

    def __init__(self, price: float) -> None:
        draft = {1: 0.1, SEQUENCES: 0.1}
        super().__init__({1: 1.0 + price, MAX_ROWS: 1.0 + price * MAX_ROWS}, draft=draft, interpolate=True)

    def observe(self, timing: StepTiming) -> None:
        """Nothing to learn."""


class Count:
    """Steps, verified drafts and tokens of one prompt."""

    def __init__(self) -> None:
        self.steps = self.verified = self.tokens = 0

    def add(self, num_verified: int, num_tokens: int) -> None:
        """One step."""
        self.steps += 1
        self.verified += num_verified
        self.tokens += num_tokens


def main() -> int:
    """Measure, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampling (default greedy)")
    parser.add_argument("--prices", type=float, nargs="*", default=PRICES)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", help="PNG file")
    args = parser.parse_args()
    opened = open_model("tiny", accelerator=args.accelerator, speculation=SpeculativeConfig(verification="fixed"))
    fixed = answers(opened, FixedLengths(NUM_DRAFTS), args.temperature)
    print(f"fixed 5: {_line(fixed)}")
    found: list[dict[str, Any]] = []
    for price in args.prices:
        own = answers(opened, AdaptiveLengths(Priced(price)), args.temperature)
        for kind in ("over_prompts", "over_steps"):
            for name in ("verified", "tokens"):
                own[kind][f"share_{name}"] = own[kind][name] / fixed[kind][name]
        found.append({"price": price, **own})
        print(f"price {price:.4f}: {_line(own)}", flush=True)
    for kind in ("over_prompts", "over_steps"):
        best = fewest(found, kind)
        print(f"{kind}: {best:.1%} fewer drafts verified cost {SHORTER:.0%} of the tokens; goal {FEWER:.0%}")
    record = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "temperature": args.temperature,
        "sequences": SEQUENCES,
        "fixed": fixed,
        "adaptive": found,
        "fewer_at_3_percent": {kind: fewest(found, kind) for kind in ("over_prompts", "over_steps")},
        "machine": describe_machine(),
        "versions": describe_versions(opened.model.report.backend),
    }
    if args.json:
        args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    if args.plot:
        plot(found, args.plot)
    return 0


def answers(opened: OpenedModel, planner: DraftPlanner, temperature: float) -> dict[str, Any]:
    """Verified drafts and tokens of a step when a planner has its way with all prompts."""
    items = heldout()
    random.Random(0).shuffle(items)
    engine = _engine(opened, planner)
    log = engine.draft_log
    if log is None:
        raise SystemExit("the model was opened without drafts")
    counts: defaultdict[str, Count] = defaultdict(Count)
    note = log.note

    def noted(request: Request, entry: SequencePlan, tokens: EntryTokens, num_kept: int) -> None:
        if not entry.is_prefill:
            counts[request.request_id].add(tokens.num_verified, num_kept)
        note(request, entry, tokens, num_kept)

    log.note = noted  # type: ignore[method-assign]
    answer_all(engine, opened, items, temperature)
    by_task: defaultdict[str, list[Count]] = defaultdict(list)
    for number, item in enumerate(items):
        by_task[item["task"]].append(counts[str(number)])
    everybody = list(counts.values())
    return {
        "over_prompts": _over_prompts(everybody),
        "over_steps": {
            "verified": sum(one.verified for one in everybody) / sum(one.steps for one in everybody),
            "tokens": sum(one.tokens for one in everybody) / sum(one.steps for one in everybody),
        },
        "by_task": {task: _over_prompts(own) for task, own in sorted(by_task.items())},
    }


def _engine(opened: OpenedModel, planner: DraftPlanner) -> Engine:
    """One whose draft lengths a given planner chooses."""
    config = EngineConfig(
        model="tiny",
        max_num_seqs=SEQUENCES,
        max_prefill_steps_in_a_row=10**6,
        speculative_config={"verification": "fixed"},
    )
    usual = assembly._draft_planner  # noqa: SLF001
    assembly._draft_planner = lambda *_: planner  # type: ignore[assignment]  # noqa: SLF001
    try:
        return Engine(opened, config)
    finally:
        assembly._draft_planner = usual  # noqa: SLF001


def _over_prompts(counts: Sequence[Count]) -> dict[str, float]:
    return {
        "verified": statistics.mean(one.verified / one.steps for one in counts),
        "tokens": statistics.mean(one.tokens / one.steps for one in counts),
    }


def fewest(found: Sequence[dict[str, Any]], kind: str) -> float:
    """Share of drafts that can be left out when so many tokens may be lost, on straight lines between prices."""
    points = [(1.0 - one[kind]["share_tokens"], 1.0 - one[kind]["share_verified"]) for one in found]
    points = sorted([(0.0, 0.0), *points])
    best = 0.0
    for (low, few), (high, many) in pairwise(points):
        if high <= SHORTER:
            best = max(best, many)
        elif low <= SHORTER:
            best = max(best, few + (SHORTER - low) / (high - low) * (many - few))
    return best


def _line(found: dict[str, Any]) -> str:
    parts: list[str] = []
    for kind in ("over_prompts", "over_steps"):
        own = found[kind]
        shares = f" ({own['share_verified']:.1%}, {own['share_tokens']:.1%})" if "share_tokens" in own else ""
        words = kind.replace("_", " ")
        parts.append(f"{words} {own['verified']:.2f} drafts verified, {own['tokens']:.2f} tokens a step{shares}")
    return "; ".join(parts)


def plot(found: Sequence[dict[str, Any]], file: str) -> None:
    """Tokens of a step against verified drafts, as shares of fixed 5, and the goal."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for kind, colour in (("over_prompts", "tab:red"), ("over_steps", "tab:blue")):
        rows = [one[kind] for one in found]
        axis.plot(
            [100 * row["share_verified"] for row in rows],
            [100 * row["share_tokens"] for row in rows],
            "o-", color=colour, label=f"mean {kind.replace('_', ' ')}",
        )  # fmt: skip
    axis.fill_between([50, 100 * (1 - FEWER)], 100 * (1 - SHORTER), 101, color="tab:green", alpha=0.15, label="goal")
    axis.set(xlabel="drafts verified, % of fixed 5", ylabel="tokens of a step, % of fixed 5", xlim=(55, 100))
    axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    sys.exit(main())
