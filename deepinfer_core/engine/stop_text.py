"""Find stop texts in a text that grows piece by piece."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """A stop text and where it begins in the whole text."""

    stop: str
    start: int


class StopText:
    """Looks for the first stop text. The cost of a piece does not depend on how much text came before.

    Thousands of stop texts are one compiled pattern and one sorted list.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare for one sequence; no stop text is empty."""
        self._sorted = sorted(set(stops))
        self._longest = max(map(len, stops), default=0)
        self._pattern = re.compile("|".join(map(re.escape, stops))) if stops else None

    def find(self, text: str, num_new: int) -> Found | None:
        """The earliest stop text that ends within the last ``num_new`` characters (the first listed among equals)."""
        if self._pattern is None:
            return None
        begin = max(len(text) - num_new - self._longest + 1, 0)
        match = self._pattern.search(text, begin)
        return Found(match.group(), match.start()) if match else None

    def num_held_back(self, text: str) -> int:
        """Characters at the end of ``text`` that may be the beginning of a stop text."""
        for count in range(min(self._longest - 1, len(text)), 0, -1):
            if self._begins_stop(text[-count:]):
                return count
        return 0

    def _begins_stop(self, suffix: str) -> bool:
        place = bisect_right(self._sorted, suffix)  # a stop text that is longer than the suffix sorts behind it
        return place < len(self._sorted) and self._sorted[place].startswith(suffix)
