"""How much comes in a second, of late."""

from __future__ import annotations

from collections import deque


class RateWindow:
    """Amounts of the last seconds.

    The first amount in the window came before the time that is counted, so it does not count itself. The end of that
    time is now and not the last amount: without new ones the rate falls, and is 0 when the window has passed.
    """

    def __init__(self, window_s: float) -> None:
        """Begin empty.

        Args:
            window_s: Seconds that an amount stays.
        """
        self._window_s = window_s
        self._amounts: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        """Take an amount that has just come."""
        self._amounts.append((now, amount))
        self._sum += amount
        self._drop(now)

    def per_second(self, now: float) -> float:
        """The rate as of now; 0 before the second amount."""
        self._drop(now)
        if len(self._amounts) < 2:
            return 0.0
        start, first = self._amounts[0]
        return max(self._sum - first, 0.0) / (now - start) if now > start else 0.0

    def _drop(self, now: float) -> None:
        while self._amounts and self._amounts[0][0] < now - self._window_s:
            self._sum -= self._amounts.popleft()[1]
        if not self._amounts:
            self._sum = 0.0  # sums of fractions do not return to zero by themselves
