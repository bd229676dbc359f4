"""Many payloads of one prompt on their way from the slow tiers into memory, while the engine does something else."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

from deepinfer_core.logging import get_logger
from deepinfer_core.prefix_cache.tiered_store import TieredStore
from deepinfer_core.prefix_cache.wanted import NOTHING, Choose, Wanted

_log = get_logger(__name__)

_KEYS_PER_TURN = 8
"""Payloads that a thread reads of one prompt before those of another get their turn."""
_TURNS_AT_ONCE = 4
"""Threads that read for one prompt at most; a store has four."""


class Fetch:
    """The payloads of one prompt, on their way. Attributes may be read by any thread.

    Attributes:
        wanted: What is read; ``NOTHING`` until that is known.
        is_over: Whether all is in memory that will come; also when nothing was to be read.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self.wanted = NOTHING
        self.is_over = False
        self._fetcher = fetcher

    def close(self) -> None:
        """Nobody waits for it any more, or what it brought was used: the room in memory is free for others."""
        self._fetcher.close(self)


@dataclass(slots=True)
class _Work:
    """What is left of a fetch; changed under the lock of its fetcher.

    Attributes:
        keys: Payloads to read.
        num_bytes: What all of them take in memory.
        num_turns: Threads that read some of them now, or will.
        has_room: Whether room in memory was set aside.
    """

    keys: deque[bytes]
    num_bytes: int
    num_turns: int = 0
    has_room: bool = False


class Fetcher:
    """Looks for what prompts could use and reads it, in the threads of a store.

    Open fetches never bring more than the memory tier holds: each has room of its own there until it is closed, and
    those that find none wait for it in the order in which it became known what they want. So they do not drive out each
    other's payloads; new payloads may, and the few that a fetch was just reading when it was closed.
    """

    def __init__(self, store: TieredStore, *, capacity_bytes: int, block_bytes: int, snapshot_bytes: int) -> None:
        """Start with nothing on its way.

        Args:
            store: Where to read.
            capacity_bytes: What its memory tier holds.
            block_bytes: Size of the payload of a block.
            snapshot_bytes: Size of that of a snapshot.
        """
        self._store = store
        self._capacity_bytes = self._free_bytes = capacity_bytes
        self._block_bytes = block_bytes
        self._snapshot_bytes = snapshot_bytes
        self._max_blocks = max(0, capacity_bytes - snapshot_bytes) // block_bytes
        self._open: dict[Fetch, _Work] = {}
        self._waiting: deque[Fetch] = deque()
        self._lock = Lock()

    def fetch(self, choose: Choose) -> Fetch:
        """Begin; returns at once."""
        fetch = Fetch(self)
        with self._lock:
            self._open[fetch] = _Work(deque(), 0)
        if not self._store.run_in_reader(lambda: self._look(fetch, choose)):
            fetch.is_over = True
        return fetch

    def close(self, fetch: Fetch) -> None:
        """What :meth:`Fetch.close` does; more calls do nothing."""
        with self._lock:
            fetch.is_over = True
            work = self._open.pop(fetch, None)
            if work is None:
                return
            work.keys.clear()
            if work.has_room:
                self._free_bytes += work.num_bytes
            elif fetch in self._waiting:
                self._waiting.remove(fetch)
        self._start_those_with_room()

    def _look(self, fetch: Fetch, choose: Choose) -> None:
        """Find out what to read."""
        wanted: Wanted = NOTHING
        try:
            if fetch in self._open:
                wanted = choose(self._store.contains, self._max_blocks)
        except Exception:  # noqa: BLE001  # as with other faults of a tier, the request must not notice
            _log.exception("prefix cache: a tier raised an error when it was asked for a key, which is a miss")
        num_bytes = len(wanted.blocks) * self._block_bytes
        num_bytes += self._snapshot_bytes if wanted.snapshot is not None else 0
        with self._lock:
            work = self._open.get(fetch)
            if work is None or not 0 < num_bytes <= self._capacity_bytes:
                fetch.is_over = True
                return
            fetch.wanted, work.num_bytes = wanted, num_bytes
            work.keys.extend(wanted.keys)
            self._waiting.append(fetch)
        self._start_those_with_room()

    def _start_those_with_room(self) -> None:
        started: list[tuple[Fetch, _Work]] = []
        with self._lock:
            while self._waiting and self._open[self._waiting[0]].num_bytes <= self._free_bytes:
                fetch = self._waiting.popleft()
                work = self._open[fetch]
                self._free_bytes -= work.num_bytes
                work.has_room = True
                work.num_turns = min(_TURNS_AT_ONCE, -(-len(work.keys) // _KEYS_PER_TURN))
                started += [(fetch, work)] * work.num_turns
        for fetch, work in started:
            self._take_turn_later(fetch, work)

    def _take_turn_later(self, fetch: Fetch, work: _Work) -> None:
        if not self._store.run_in_reader(lambda: self._take_turn(fetch, work)):
            fetch.is_over = True

    def _take_turn(self, fetch: Fetch, work: _Work) -> None:
        """Read the next few payloads, then go to the end of the line."""
        for _ in range(_KEYS_PER_TURN):
            with self._lock:
                if not work.keys:
                    break
                key = work.keys.popleft()
            self._store.get(key)
        with self._lock:
            if not work.keys:
                work.num_turns -= 1
                fetch.is_over |= not work.num_turns
                return
        self._take_turn_later(fetch, work)
