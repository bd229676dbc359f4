"""A slow tier that a test holds up, and waiting for what other threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from deepinfer_core.prefix_cache.tier import Entry, TierStatistics

_FOREVER_S = 60.0
"""After so long something never happens."""


class HeldTier:
    """Payloads that are read when the tier is let go.

    Attributes:
        payloads: What it has; a test puts it here.
        may_look: ``contains`` waits for it.
        may_read: ``get`` waits for it.
        asked: Keys that were to be read, in order.
    """

    name = "held"

    def __init__(self, payloads: dict[bytes, bytes]) -> None:
        self.payloads = payloads
        self.may_look, self.may_read = threading.Event(), threading.Event()
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        payload = self.payloads.get(key)
        self.asked.append(key)
        self.may_read.wait(_FOREVER_S)
        return payload

    def put(self, key: bytes, payload: bytes) -> list[Entry]:
        self.payloads[key] = payload
        return []

    def contains(self, key: bytes) -> bool:
        self.may_look.wait(_FOREVER_S)
        return key in self.payloads

    def delete(self, key: bytes) -> None:
        self.payloads.pop(key, None)

    def statistics(self) -> TierStatistics:
        return TierStatistics()


def wait_until(happened: Callable[[], bool]) -> None:
    """Return when another thread has done something; fails if it never does."""
    end = time.monotonic() + _FOREVER_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)
