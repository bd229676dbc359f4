"""How fast steps follow each other, as the host sees it."""

from __future__ import annotations


class StepPace:
    """Seconds from the tokens of one step to those of the next.

    That is what a step costs: its work on the device, and the host's as far as the device waits for it, whoever calls
    the engine included.
    """

    def __init__(self) -> None:
        self._last: float | None = None

    def lap(self, now: float) -> float | None:
        """Take note that a step's tokens have arrived.

        Returns:
            Seconds since those of the step before; None when nothing is known to have run without a break since then.
        """
        before, self._last = self._last, now
        return None if before is None else now - before

    def pause(self) -> None:
        """Nothing runs: the next step follows nothing."""
        self._last = None
