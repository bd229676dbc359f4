"""A queue of sequences that is always in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any

from deepinfer_core.errors import require
from deepinfer_core.scheduler.sequence import Sequence

Key = Callable[[Sequence], tuple[Any, ...]]
"""What a queue is sorted by: unique for each sequence, and constant while it is queued."""


def by_rank(sequence: Sequence) -> tuple[Any, ...]:
    """The policy's order: first come those that are served first and preempted last."""
    return sequence.rank


def by_deadline(sequence: Sequence) -> tuple[Any, ...]:
    """Earliest deadline first."""
    return sequence.deadline, sequence.arrival


class SortedQueue:
    """Sequences in the order of a key, smallest first; adding and removing search, they do not scan."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __getitem__(self, place: int) -> Sequence:
        return self._sequences[place]

    def __contains__(self, sequence: Sequence) -> bool:
        place = self._place(sequence)
        return place < len(self._sequences) and self._sequences[place] is sequence

    @property
    def first(self) -> Sequence:
        return self._sequences[0]

    @property
    def last(self) -> Sequence:
        return self._sequences[-1]

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=self._key)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands.

        Raises:
            InternalError: It is not here.
        """
        require(sequence in self, f"{sequence!r} is not in the queue that it should be in")
        del self._sequences[self._place(sequence)]

    def _place(self, sequence: Sequence) -> int:
        return bisect_left(self._sequences, self._key(sequence), key=self._key)
