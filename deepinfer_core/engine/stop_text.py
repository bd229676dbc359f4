"""Find stop texts in a text that grows piece by piece."""

from __future__ import annotations

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

    Thousands of stop texts cost no more than a few: they are looked up by their length.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare for one sequence; no stop text is empty."""
        self._stops = frozenset(stops)
        self._sorted = sorted(self._stops)
        self._lengths = sorted({len(stop) for stop in stops}, reverse=True)

    def find(self, text: str, num_new: int) -> Found | None:
        """The stop text that is complete first within the last ``num_new`` characters, the longest among equals.

        So the answer does not depend on the pieces that the text comes in.
        """
        if not self._stops:
            return None
        for end in range(len(text) - num_new + 1, len(text) + 1):
            for length in self._lengths:
                if length <= end and text[end - length : end] in self._stops:
                    return Found(text[end - length : end], end - length)
        return None

    def num_held_back(self, text: str) -> int:
        """Characters at the end of ``text`` that may be the beginning of a stop text."""
        if not self._stops:
            return 0
        longest = self._lengths[0]
        for count in range(min(longest - 1, len(text)), 0, -1):
            if self._begins_stop(text[-count:]):
                return count
        return 0

    def _begins_stop(self, suffix: str) -> bool:
        place = bisect_right(self._sorted, suffix)  # a stop text that is longer than the suffix sorts behind it
        return place < len(self._sorted) and self._sorted[place].startswith(suffix)
