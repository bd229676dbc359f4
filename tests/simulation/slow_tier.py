"""An outer tier of the prefix cache whose payloads are on a disk: they come late, in part, or never."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from deepinfer_core.prefix_cache.wanted import NOTHING, Choose, Wanted
from tests.simulation.lossy_tier import LossyTier


@dataclass(eq=False)
class LateFetch:
    """Payloads on their way; ``over_at`` is infinite for a disk that hangs."""

    tier: SlowTier
    choose: Choose
    look_at: float
    over_at: float
    wanted: Wanted = NOTHING
    is_over: bool = False

    def close(self) -> None:
        self.is_over = True
        if self in self.tier.open:
            self.tier.open.remove(self)


class SlowTier(LossyTier):
    """Memory that forgets at random, before a disk that holds as much and takes its time.

    Attributes:
        open: Fetches that were begun and not closed.
        num_begun: All that were begun.
        num_in_part: Fetches of which some came, and the rest never.
    """

    def __init__(self, rng: random.Random, capacity: int, *, hangs: float = 0.2) -> None:
        """Start empty; ``hangs`` is the chance that a fetch never ends."""
        super().__init__(rng, capacity)
        self.open: list[LateFetch] = []
        self.num_begun = self.num_in_part = 0
        self._disk: dict[bytes, bytes] = {}
        self._hangs = hangs
        self._now = 0.0

    def put(self, key: bytes, payload: bytes) -> None:
        """Half of what comes is on the disk alone."""
        self._disk[key] = payload
        while len(self._disk) > self._capacity:
            del self._disk[self._rng.choice(list(self._disk))]
        if self._rng.random() < 0.5:
            super().put(key, payload)

    def delete(self, key: bytes) -> None:
        super().delete(key)
        self._disk.pop(key, None)

    def fetch(self, choose: Choose) -> LateFetch:
        look_at = self._now + self._rng.choice((0.0, 2.0))
        over_at = math.inf if self._rng.random() < self._hangs else look_at + self._rng.uniform(0.0, 20.0)
        self.num_begun += 1
        self.open.append(LateFetch(self, choose, look_at, over_at))
        return self.open[-1]

    def pass_time(self, now: float) -> None:
        """Let come what is due."""
        self._now = now
        for fetch in [fetch for fetch in self.open if not fetch.is_over]:
            if fetch.wanted is NOTHING and fetch.look_at <= now:
                self._look(fetch)
            if fetch.over_at <= now:
                self._bring(fetch.wanted.keys)
                fetch.is_over = True

    def _look(self, fetch: LateFetch) -> None:
        """What is found never comes whole if the disk hangs, but some of it may."""
        fetch.wanted = fetch.choose(lambda key: self.contains(key) or key in self._disk, 6)
        if fetch.over_at == math.inf and fetch.wanted.keys:
            self._bring(fetch.wanted.keys[: self._rng.randrange(len(fetch.wanted.keys))])
            self.num_in_part += 1

    def _bring(self, keys: tuple[bytes, ...]) -> None:
        for key in keys:
            if key in self._disk and self._rng.random() >= self._miss / 4:
                LossyTier.put(self, key, self._disk[key])
