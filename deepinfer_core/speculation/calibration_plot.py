"""A picture of a calibration: reliability diagrams before and after, errors and areas by position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.config.extras import require_plotting
from deepinfer_core.errors import ConfigError
from deepinfer_core.speculation.calibration import FittedTemperatures, PositionMeasure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_LOOKS = (("before", "tab:gray", "s--"), ("after", "tab:blue", "o-"))
_LARGEST_DOT = 160.0
"""Area of the dot of a bin that has all blocks, in square points."""


def plot_calibration(fit: FittedTemperatures, title: str, file: Path) -> None:
    """Draw one reliability diagram for each position, then calibration error and area under the curve of all.

    Args:
        fit: What was fitted and measured.
        title: What was calibrated.
        file: A PNG file, replaced if it exists.

    Raises:
        ConfigError: matplotlib is not installed, or the file system refuses.
    """
    require_plotting("--plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_panels = len(fit.temperatures) + 2
    num_rows = -(-num_panels // _COLUMNS)
    figure = Figure(figsize=(3.6 * _COLUMNS, 3.4 * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    panels = list(figure.subplots(num_rows, _COLUMNS, squeeze=False).flat)
    for panel, before, after, temperature in zip(panels, fit.before, fit.after, fit.temperatures, strict=False):
        _draw_reliability(panel, before, after, temperature)
    _draw_by_position(panels[num_panels - 2], "expected calibration error", [[p.ece for p in s] for s in _both(fit)])
    _draw_by_position(panels[num_panels - 1], "area under the curve", [[p.auc for p in s] for s in _both(fit)])
    for panel in panels[num_panels:]:
        panel.set_axis_off()
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", source="--plot") from error


def _both(fit: FittedTemperatures) -> tuple[Sequence[PositionMeasure], Sequence[PositionMeasure]]:
    return fit.before, fit.after


def _draw_reliability(panel: Axes, before: PositionMeasure, after: PositionMeasure, temperature: float) -> None:
    """What happened over what was predicted; the dot of a bin is as large as its share of the blocks."""
    panel.plot((0, 1), (0, 1), color="black", linewidth=0.8, alpha=0.5)
    for (name, color, style), measured in zip(_LOOKS, (before, after), strict=True):
        x, y = [one.predicted for one in measured.bins], [one.accepted for one in measured.bins]
        panel.plot(x, y, style[1:], color=color, linewidth=1, label=f"{name}: error {measured.ece:.3f}")
        sizes = [4 + _LARGEST_DOT * one.count / measured.num_blocks for one in measured.bins]
        panel.scatter(x, y, s=sizes, marker=style[0], color=color, alpha=0.6)
    drafts = "draft 1" if before.position == 1 else f"drafts 1 to {before.position}"
    panel.set_title(f"{drafts}, temperature {temperature:.3g}", fontsize=9)
    panel.set_xlabel("predicted survival")
    panel.set_ylabel("share that survived")
    panel.set_xlim(-0.03, 1.03)
    panel.set_ylim(-0.03, 1.03)
    panel.legend(loc="upper left", fontsize=8)
    panel.grid(alpha=0.3)


def _draw_by_position(panel: Axes, name: str, values: Sequence[Sequence[float | None]]) -> None:
    for (label, color, style), series in zip(_LOOKS, values, strict=True):
        known = [(position, value) for position, value in enumerate(series, 1) if value is not None]
        panel.plot([p for p, _ in known], [v for _, v in known], style, color=color, linewidth=1, label=label)
    panel.set_title(name, fontsize=9)
    panel.set_xlabel("drafts")
    panel.set_xticks(range(1, len(values[0]) + 1))
    panel.legend(fontsize=8)
    panel.grid(alpha=0.3)
