"""What a place is that keeps payloads by key: host memory, a disk, or one that somebody else writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

Entry: TypeAlias = tuple[bytes, bytes]
"""A key and its payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatistics:
    """What a tier holds, and what happened to it since it was made.

    Attributes:
        num_entries: Payloads that it holds.
        used_bytes: Their bytes.
        capacity_bytes: What they may have at most.
        num_queries: Payloads that were asked for.
        num_hits: Those that were found.
        num_evictions: Those that had to leave to make room.
        num_refused: Those that were not taken: too large, or no room in time, or writing is off.
        num_errors: Faults: unusable files, reads and writes that failed. Each was a miss or a refusal to the caller.
        is_writable: False once a tier has turned itself off for writes.
    """

    num_entries: int = 0
    used_bytes: int = 0
    capacity_bytes: int = 0
    num_queries: int = 0
    num_hits: int = 0
    num_evictions: int = 0
    num_refused: int = 0
    num_errors: int = 0
    is_writable: bool = True


class Tier(Protocol):
    """Keeps payloads by key, or loses them: it is a cache.

    Payloads are opaque, and a key stands for one payload for ever (:mod:`~deepinfer_core.prefix_cache.keys`). Methods
    may be called from any thread and raise nothing: a fault is a miss, counted, and said once in the log.
    """

    @property
    def name(self) -> str:
        """A word for metrics, such as ``disk``."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The payload, now the one that was used last; None if it is not here."""
        ...

    def put(self, key: bytes, payload: bytes) -> list[Entry]:
        """Take a payload.

        Returns:
            What should move to the next tier: what had to leave, or the payload itself if it was refused. A tier that
            cannot hand out what leaves it returns nothing.
        """
        ...

    def contains(self, key: bytes) -> bool:
        """Whether ``get`` would probably find it; neither counted nor a use."""
        ...

    def delete(self, key: bytes) -> None:
        """Forget a payload, if it is here."""
        ...

    def statistics(self) -> TierStatistics:
        """A snapshot."""
        ...
