"""Waiting sequences whose payloads are on their way from a disk, and how long that may take."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.scheduler.prefix_cache import Fetch, PrefixCache
from deepinfer_core.scheduler.sequence import Sequence

_MOST_FETCHES = 2
"""Fetches for one admission: one, and another one if something was lost again before the sequence was admitted."""


@dataclass(slots=True)
class _Pending:
    """A sequence for which something was fetched.

    Attributes:
        fetch: What is on its way or has come; None when the sequence has waited long enough.
        num_fetches: How many there were.
        since: Since when nothing but this keeps it from being looked at for admission; None if that is not so yet.
        is_seen: Whether it was noticed that the fetch is over.
    """

    fetch: Fetch | None
    num_fetches: int = 1
    since: float | None = None
    is_seen: bool = False


class Prefetches:
    """What was asked for when a sequence arrived, until it is admitted or over.

    The time that a sequence waits for payloads begins when its turn to be admitted comes, not before: what arrives
    while it waits for its turn costs it nothing.
    """

    def __init__(self, cache: PrefixCache, max_wait_s: float) -> None:
        """Start with nothing.

        Args:
            cache: Where hits are found, and whose outer tiers are asked.
            max_wait_s: Seconds that a sequence whose turn has come may wait for payloads.
        """
        self._cache = cache
        self._max_wait_s = max_wait_s
        self._pending: dict[Sequence, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, sequence: Sequence) -> None:
        """Fetch what the outer tiers have for a sequence, unless that was done already."""
        if sequence not in self._pending and (fetch := self._cache.fetch(sequence)) is not None:
            self._pending[sequence] = _Pending(fetch)

    def is_on_its_way(self, sequence: Sequence, now: float) -> bool:
        """Whether a sequence whose turn has come should let others pass, because payloads may still arrive in time."""
        self.begin(sequence)
        pending = self._pending.get(sequence)
        if pending is None or pending.fetch is None:
            return False
        if pending.since is None:
            pending.since = now
        if pending.fetch.is_over and self._has_come(sequence, pending, pending.fetch, now):
            return False
        if now - pending.since < self._max_wait_s:
            return True
        pending.fetch.close()
        pending.fetch = None
        self._cache.look_again()
        self._cache.counters.num_late += 1
        return False

    def end(self, sequence: Sequence) -> None:
        """A sequence was admitted with what it found, or is over."""
        pending = self._pending.pop(sequence, None)
        if pending is not None and pending.fetch is not None:
            pending.fetch.close()

    def _has_come(self, sequence: Sequence, pending: _Pending, fetch: Fetch, now: float) -> bool:
        """Whether there is no use in waiting; fetches anew if the cache lost part of the hit since it was found."""
        if not pending.is_seen:
            pending.is_seen = True
            self._cache.look_again()
        is_whole = self._cache.find(sequence).resume >= fetch.wanted.num_tokens
        if is_whole or pending.num_fetches == _MOST_FETCHES:
            return True
        fetch.close()
        pending.fetch = self._cache.fetch(sequence)
        pending.num_fetches += 1
        pending.since, pending.is_seen = now, False
        return pending.fetch is None
