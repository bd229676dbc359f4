"""A picture of a measurement: how the times of all requests are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.config.extras import require_plotting
from deepinfer_core.engine.benchmark import PERCENTILES, summarize
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {
    "first_token_s": "to the first token (TTFT)",
    "token_s": "per token after it, mean of a request (TPOT)",
    "gap_s": "from token to token (ITL)",
    "total_s": "whole request (E2E)",
}


def plot_times(
    times: Mapping[str, Sequence[float]], title: str, file: Path, limits: Mapping[str, float] | None = None
) -> None:
    """Draw the share of values below each time, one panel for each kind of time.

    Args:
        times: Kind -> values in seconds, as :attr:`Measurement.times` has them.
        title: What was measured.
        file: A PNG file, replaced if it exists.
        limits: Kind -> longest time in seconds that is good, drawn as a line.

    Raises:
        ConfigError: matplotlib is not installed, or the file system refuses.
    """
    require_plotting("--png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * max(len(times), 1), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, max(len(times), 1), squeeze=False)[0]
    for panel, (kind, values) in zip(panels, times.items(), strict=False):
        _draw(panel, kind, values)
        if limits and kind in limits:
            panel.axvline(1000 * limits[kind], color="tab:red", linewidth=1, label="goal")
            panel.legend(loc="lower right", fontsize=8)
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", source="--png") from error


def _draw(panel: Axes, kind: str, values: Sequence[float]) -> None:
    milliseconds = sorted(1000 * value for value in values)
    shares = [100 * (place + 1) / len(milliseconds) for place in range(len(milliseconds))]
    panel.step(milliseconds, shares, where="post")
    for percent, value in zip(PERCENTILES, summarize(milliseconds).values(), strict=False):
        panel.axvline(value, color="tab:gray", linestyle=":", linewidth=1)
        panel.annotate(f"p{percent} {_short(value)}", (value, percent), fontsize=8, ha="right", va="bottom")
    panel.set_title(_TITLES[kind], fontsize=9)
    panel.set_xlabel("milliseconds")
    panel.set_ylabel("% of values at most")
    panel.set_ylim(0, 108)
    panel.grid(alpha=0.3)


def _short(value: float) -> str:
    """Three digits, more before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
