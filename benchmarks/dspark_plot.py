"""Pictures of what drafting is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_COLOURS = {"none": "black", "adaptive": "tab:red", "fixed 4": "tab:olive", "fixed 5": "tab:purple"}
_WIDE = ("none", "adaptive")


def plot_throughput(points: Sequence[dict[str, Any]], file: str, title: str) -> None:
    """Throughput by concurrency, relative to no drafts, and against the speed of each sequence."""
    from matplotlib import pyplot

    points = sorted(points, key=lambda point: point["sequences"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
    for mode in points[0]["tokens_per_s"]:
        known = [point for point in points if mode in point["tokens_per_s"]]
        counts = [point["sequences"] for point in known]
        rates = [point["tokens_per_s"][mode] for point in known]
        style = {"color": _COLOURS.get(mode), "marker": "o", "linewidth": 2.5 if mode in _WIDE else 1.0}
        relative = [point["tokens_per_s"][mode] / point["tokens_per_s"]["none"] for point in known]
        left.plot(counts, relative, label=mode, **style)
        right.plot([rate / count for rate, count in zip(rates, counts, strict=True)], rates, label=mode, **style)
    left.set(xscale="log", xlabel="sequences at once", ylabel="tokens/s of decode steps, without drafts = 1")
    left.set_xticks([point["sequences"] for point in points], [str(point["sequences"]) for point in points])
    left.minorticks_off()
    right.set(xscale="log", yscale="log", xlabel="tokens/s of each sequence", ylabel="tokens/s of all")
    left.legend()
    _save(figure, file, title)


def plot_acceptance(points: Sequence[dict[str, Any]], file: str, title: str) -> None:
    """Drafts that are verified and accepted for each block, by concurrency and task."""
    from matplotlib import pyplot

    points = sorted(points, key=lambda point: point["sequences"])
    figure, axes = pyplot.subplots(figsize=(9, 5))
    tasks = sorted({task for point in points for task in point["modes"]["adaptive"]["by_task"]})
    for task in tasks:
        rows = [(point["sequences"], point["modes"]["adaptive"]["by_task"].get(task)) for point in points]
        known = [(count, row["verified"]) for count, row in rows if row is not None]
        axes.plot(*zip(*known, strict=True), marker=".", linewidth=0.8, label=task)
    counts = [point["sequences"] for point in points]
    adaptive = [point["modes"]["adaptive"] for point in points]
    verified = [mode["verified_per_block"] for mode in adaptive]
    axes.plot(counts, verified, color="tab:red", marker="o", linewidth=2.5, label="all tasks")
    axes.plot(counts, [mode["steps_with_drafts"] for mode in adaptive], "k--", label="share of steps with drafts")
    axes.set(xscale="log", xlabel="sequences at once", ylabel="verified drafts of a block")
    axes.legend(fontsize="x-small", ncols=2)
    _save(figure, file, title)


def plot_timeline(points: Sequence[dict[str, Any]], file: str, title: str) -> None:
    """Rows of each step of adaptive runs, for each sequence that may run at once."""
    from matplotlib import pyplot

    points = sorted(points, key=lambda point: point["sequences"])
    figure, axes = pyplot.subplots(len(points), 1, figsize=(9, 1.0 + 1.1 * len(points)), sharex=True, squeeze=False)
    for axis, point in zip(axes[:, 0], points, strict=True):
        rows = [count / point["sequences"] for count in point["modes"]["adaptive"]["rows_timeline"]]
        axis.step(range(len(rows)), rows, linewidth=1.0)
        axis.set(ylim=(0, 6.5), yticks=(1, 6), ylabel=f"{point['sequences']}")
        axis.grid(axis="y", linewidth=0.5)
    axes[-1, 0].set(xlabel="step")
    figure.supylabel("rows of a sequence (6: all drafts) by sequences at once", fontsize="small")
    _save(figure, file, f"{title}: rows of each step")


def _save(figure: Any, file: str, title: str) -> None:
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
