"""Held-out tasks of the tiny model, greedy: share of exact answers per task, against the figures it was published with.

    python benchmarks/quality.py [--json benchmarks/results/quality_cpu_202611.json]

Exits with 1 when a task is off by more than one point (0.01).
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HELDOUT = ROOT / "tests/data/eval_heldout.jsonl"
END = "<｜end▁of▁sentence｜>"
PUBLISHED = {
    "add": 15, "sub": 14, "sort": 15, "reverse": 16, "copy": 16, "count": 10, "json": 13, "code": 14, "tool": 16,
    "recall": 16, "story": 16, "think": 16, "recall_400": 8, "recall_800": 8, "recall_1500": 8,
}  # fmt: skip
"""Right answers of the exported checkpoint per task, of 16 (of 8 for the long documents): the shares that the model's
own table gives, rounded to two digits there."""


def main() -> int:
    """Run all prompts as one batch and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--numerics", default="released")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    args = parser.parse_args()

    from deepinfer_core import LLM, SamplingParams

    items = [json.loads(line) for line in HELDOUT.read_text().splitlines()]
    with LLM("tiny", accelerator=args.accelerator, numerics=args.numerics, max_num_seqs=args.max_num_seqs) as llm:
        start = time.monotonic()
        outputs = llm.generate([item["prompt"] for item in items], SamplingParams(temperature=0.0, max_tokens=128))
        seconds = time.monotonic() - start
        texts = [llm.get_tokenizer().decode(o.outputs[0].token_ids, skip_special_tokens=False) for o in outputs]
        report = llm.binding_report
    table = score(items, texts)
    print(f"{'task':<12} {'prompts':>7} {'exact':>6} {'published':>9}")
    for task, row in table.items():
        print(f"{task:<12} {row['prompts']:>7} {row['exact']:>6.3f} {row['published']:>9.3f}")
    print(f"{len(items)} prompts in {seconds:.0f} s; {report.summary()}")
    if args.json:
        args.json.write_text(json.dumps(_record(args, table, seconds, report), indent=1) + "\n")
    worst = max(abs(row["exact"] - row["published"]) for row in table.values())
    return 0 if worst <= 0.01 else 1


def score(items: list[dict[str, Any]], texts: list[str]) -> dict[str, dict[str, float]]:
    """Share of right answers per task and over all prompts."""
    right: dict[str, list[bool]] = defaultdict(list)
    for item, text in zip(items, texts, strict=True):
        right[item["task"]].append(is_right(item, text.split(END)[0]))
    counts = {task: (sum(hits), len(hits), PUBLISHED[task]) for task, hits in right.items()}
    counts["all"] = tuple(sum(column) for column in zip(*counts.values(), strict=True))  # type: ignore[assignment]
    return {
        task: {"prompts": number, "exact": hits / number, "published": published / number}
        for task, (hits, number, published) in counts.items()
    }


def is_right(item: dict[str, Any], text: str) -> bool:
    """Exact match, or the pattern of the grammar for stories."""
    if item["match"] == "regex":
        return re.fullmatch(item["answer"], text) is not None
    return text == item["answer"]


def _record(args: argparse.Namespace, table: Any, seconds: float, report: Any) -> dict[str, Any]:
    import torch

    import deepinfer_core

    return {
        "what": "held-out tasks of the tiny model, greedy",
        "comparison": "exact match per task against the exported checkpoint's published share, within 0.01",
        "model": "tiny",
        "numerics": args.numerics,
        "max_num_seqs": args.max_num_seqs,
        "machine": {"processor": report.device, "threads": torch.get_num_threads(), "system": platform.system()},
        "versions": {
            "deepinfer_core": deepinfer_core.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "binding": report.as_json(),
        "seconds": round(seconds, 1),
        "tasks": table,
    }


if __name__ == "__main__":
    sys.exit(main())
