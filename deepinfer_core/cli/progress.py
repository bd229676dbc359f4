"""Progress for a person who waits: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

_Item = TypeVar("_Item")


def track(items: Sequence[_Item]) -> Iterator[_Item]:
    """The items, with a bar on stderr that counts those that are done, if stderr is a terminal."""
    from tqdm import tqdm

    yield from tqdm(items, **_LOOK)


class RequestBar:
    """Counts requests as they end, with the rate of their tokens and how many failed; a context manager.

    Attributes:
        num_ended: Requests that ended.
        num_failed: Those of them that ended with an error.
        num_tokens: Tokens that they generated.
    """

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, **_LOOK)  # its type parameter is what a bar iterates over, and this does not
        self._start = time.monotonic()
        self.num_ended = self.num_failed = self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    @property
    def seconds(self) -> float:
        """Since it began, never zero."""
        return max(time.monotonic() - self._start, 1e-9)

    def count(self, num_tokens: int, *, failed: bool) -> None:
        """One more request has ended."""
        self.num_ended += 1
        self.num_failed += failed
        self.num_tokens += num_tokens
        failures = f", {self.num_failed} failed" if self.num_failed else ""
        self._bar.set_postfix_str(f"{self.num_tokens / self.seconds:.1f} tokens/s{failures}", refresh=False)
        self._bar.update()


_LOOK: dict[str, Any] = {"unit": "request", "dynamic_ncols": True, "leave": False, "disable": None}
"""``disable=None`` shows a bar on terminals only."""
