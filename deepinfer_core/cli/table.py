"""Aligned columns for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), indent: str = "") -> list[str]:
    """Lines of a table.

    Args:
        rows: Cells; all rows are equally long.
        right: Numbers of the columns that are aligned to the right.
        indent: Put in front of every line.
    """
    listed = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    to_right = set(right)
    return [
        (indent + "  ".join(_placed(row[n], width, n in to_right) for n, width in enumerate(widths))).rstrip()
        for row in listed
    ]


def _placed(cell: str, width: int, to_right: bool) -> str:
    return cell.rjust(width) if to_right else cell.ljust(width)
