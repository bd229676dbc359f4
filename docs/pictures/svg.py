"""A sheet of boxes, arrows and text, as SVG that looks the same on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from deepinfer_core.errors import InternalError

INK, PALE = "#1f2937", "#6b7280"
_LETTER_WIDTH = {"bold": 0.69, "normal": 0.6}
"""Average width of a letter of the widest font that the pictures name, in units of its size."""


class Sheet:
    """Shapes are drawn in the order of the calls; coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """An empty white sheet; the title is what a screen reader says."""
        self._width, self._height = width, height
        self._title = title
        self._shapes: list[str] = []

    def area(
        self, x: int, y: int, width: int, height: int, label: str, fill: str, *, label_below: bool = False
    ) -> None:
        """A background with its name in the upper or lower left corner."""
        self._shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}"/>')
        self.text(x + 10, y + (height - 10 if label_below else 17), label, size=11, color=PALE)

    def box(
        self, x: int, y: int, width: int, height: int, title: str, lines: Sequence[str] = (), *, fill: str = "#ffffff"
    ) -> None:
        """A frame with a bold title and small lines under it, centred."""
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{INK}"/>'
        )
        top = y + (height - 16 * (1 + len(lines))) / 2 + 12
        for number, line in enumerate((title, *lines)):
            size, weight = (13, "bold") if number == 0 else (11, "normal")
            if len(line) * size * _LETTER_WIDTH[weight] > width:
                raise InternalError(f"the text {line!r} does not fit into its box of {width} pixels")
            color = INK if number == 0 else PALE
            self.text(x + width / 2, top + 16 * number, line, size=size, color=color, weight=weight, anchor="middle")

    def line(self, *points: tuple[float, float], head: bool = False) -> None:
        """A line through the points, with an arrow head at the last one if asked."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        end = ' marker-end="url(#head)"' if head else ""
        self._shapes.append(f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.5"{end}/>')

    def arrow(self, *points: tuple[float, float], label: str = "", at: tuple[float, float] = (0, 0)) -> None:
        """A line with a head; the label stands at ``at``."""
        self.line(*points, head=True)
        if label:
            self.text(*at, label, size=11, color=INK)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 12,
        color: str = INK,
        weight: str = "normal",
        anchor: str = "start",
    ) -> None:
        """One line of text on the baseline ``y``."""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{color}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A filled rectangle with a thin frame."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{INK}" '
            'stroke-width="0.7"/>'
        )

    def svg(self) -> str:
        """The whole picture."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" width="{self._width}" '
            f'height="{self._height}" role="img" font-family="DejaVu Sans, Verdana, Helvetica, sans-serif">\n'
            f"<title>{escape(self._title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{self._width}" height="{self._height}" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"
