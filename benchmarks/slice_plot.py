"""The roofline of the slice: one dot for each op of each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from measure import Ceilings


def plot_roofline(steps: list[dict[str, Any]], ceilings: Ceilings, machine: str, file: Path) -> None:
    """Write a PNG: achieved FLOP/s over FLOP per byte, with the two ceilings."""
    figure, axes = plt.subplots(figsize=(9, 6))
    edge = ceilings.flop_per_s / ceilings.bytes_per_s
    axes.plot([1, edge, 1e5], [ceilings.bytes_per_s, ceilings.flop_per_s, ceilings.flop_per_s], "k-", linewidth=1)
    for step, marker in zip(steps, "osD^v<>Pp*hXd" * 3, strict=False):
        rows = [row for row in step["ops"] if row.get("us") and row["flop"] > 0]
        xs = [row["flop"] / row["bytes"] for row in rows]
        ys = [row["flop"] / row["us"] * 1e6 for row in rows]
        axes.scatter(xs, ys, marker=marker, s=28, alpha=0.7, label=f"{step['step']} ({100 * step['share']:.0f} %)")
        for row, x, y in zip(rows, xs, ys, strict=True):
            if row["share"] < 0.5:
                axes.annotate(row["op"].split(".")[1], (x, y), fontsize=6, xytext=(3, -6), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="FLOP/s", title=f"Layer slice on {machine}")
    axes.legend(fontsize=7, loc="lower right")
    axes.grid(True, which="major", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
