"""An outer tier of the prefix cache that forgets, and does not always find what it has."""

from __future__ import annotations

import random

from deepinfer_core.prefix_cache.wanted import Choose
from deepinfer_core.scheduler.prefix_cache import Fetch


class LossyTier:
    """A dictionary of payloads; what drops out of it is random."""

    def __init__(self, rng: random.Random, capacity: int, *, miss: float = 0.05) -> None:
        """Start empty.

        Args:
            rng: Decides what is dropped and missed.
            capacity: Payloads at most.
            miss: Chance that a payload which is there is not found when it is read.
        """
        self._rng = rng
        self._capacity = capacity
        self._miss = miss
        self._payloads: dict[bytes, bytes] = {}

    def contains(self, key: bytes) -> bool:
        return key in self._payloads

    def get(self, key: bytes) -> bytes | None:
        return self._payloads.get(key) if self._rng.random() >= self._miss else None

    def fetch(self, choose: Choose) -> Fetch | None:  # noqa: ARG002  # the protocol's name
        return None

    def put(self, key: bytes, payload: bytes) -> None:
        if len(self._payloads) >= self._capacity:
            del self._payloads[self._rng.choice(list(self._payloads))]
        self._payloads[key] = payload

    def delete(self, key: bytes) -> None:
        self._payloads.pop(key, None)

    def pass_time(self, now: float) -> None:
        """Nothing is on its way here."""
