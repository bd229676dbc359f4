"""What leaving out unlikely drafts costs, from recorded blocks: drafts verified, tokens kept, acceptance.

    python benchmarks/dspark_thresholds.py BLOCKS [--json FILE] [--plot FILE]

BLOCKS is what ``dspark.py blocks`` has written: every draft of the tiny model on its held-out prompts was verified. A
threshold keeps the drafts whose survival (product of confidences) reaches it; what would have become of them is known.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]
from dspark_traces import Block, by_task, read_blocks  # noqa: E402 - beside this file

THRESHOLDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def main() -> int:
    """Compute, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", type=Path)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", help="PNG file")
    args = parser.parse_args()
    blocks = read_blocks(args.blocks)
    found = {"all": curve(blocks), **{task: curve(own) for task, own in sorted(by_task(blocks).items())}}
    for row in found["all"]:
        print(
            f"survival {row['threshold']:.2f}: {row['verified']:.2f} drafts verified ({row['share_verified']:.1%} of "
            f"all), {row['tokens']:.3f} tokens a block ({row['share_tokens']:.1%}), {row['acceptance']:.1%} accepted"
        )
    if args.json:
        args.json.write_text(json.dumps({"what": (__doc__ or "").splitlines()[0], "curves": found}, indent=1) + "\n")
    if args.plot:
        plot(found, args.plot)
    return 0


def curve(blocks: Sequence[Block]) -> list[dict[str, float]]:
    """At each threshold: drafts verified and tokens of a block, both also as a share of verifying all, acceptance."""
    chances = [list(accumulate(map(_sigmoid, block.logits), mul)) for block in blocks]
    rows = []
    for threshold in THRESHOLDS:
        verified = [sum(chance >= threshold for chance in row) for row in chances]
        accepted = [min(block.num_accepted, number) for block, number in zip(blocks, verified, strict=True)]
        rows.append(
            {
                "threshold": threshold,
                "verified": sum(verified) / len(blocks),
                "tokens": 1 + sum(accepted) / len(blocks),
                "acceptance": sum(accepted) / max(sum(verified), 1),
            }
        )
    for row in rows:
        row["share_verified"] = row["verified"] / rows[0]["verified"]
        row["share_tokens"] = row["tokens"] / rows[0]["tokens"]
    return rows


def plot(found: dict[str, list[dict[str, float]]], file: str) -> None:
    """Acceptance and tokens of a block by threshold, for each task."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5))
    for task, rows in found.items():
        style: dict[str, Any] = {"linewidth": 3.0, "color": "tab:red"} if task == "all" else {"linewidth": 1.0}
        for axis, name in zip(axes, ("acceptance", "tokens"), strict=True):
            axis.plot([row["threshold"] for row in rows], [row[name] for row in rows], label=task, **style)
    axes[0].set(xlabel="least survival of a verified draft", ylabel="share of verified drafts that stand")
    axes[1].set(xlabel="least survival of a verified draft", ylabel="tokens of a block")
    axes[0].legend(fontsize="x-small", ncols=2)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, logit))))


if __name__ == "__main__":
    sys.exit(main())
