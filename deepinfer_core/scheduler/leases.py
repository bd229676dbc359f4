"""Memory that somebody outside still reads or writes, such as a transfer that was started and is not acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lease:
    """A reference of an outsider to the memory that a sequence had when the lease was granted.

    Attributes:
        block_ids: Blocks that are not reused while it lasts.
        state_slot: The same for the state slot; 0 for none.
        expires_at: When it ends by itself, on the clock of ``Scheduler.plan``.
    """

    block_ids: tuple[int, ...]
    state_slot: int
    expires_at: float


class Leases:
    """Open leases; each ends once, by acknowledgement or by its time."""

    def __init__(self, memory: CacheMemory) -> None:
        self._memory = memory
        self._open: list[Lease] = []

    def __len__(self) -> int:
        return len(self._open)

    def grant(self, sequence: Sequence, expires_at: float) -> Lease:
        """Keep a sequence's memory from being reused, whatever becomes of the sequence."""
        lease = Lease(block_ids=tuple(sequence.block_ids), state_slot=sequence.state_slot, expires_at=expires_at)
        self._memory.blocks.share(lease.block_ids)
        self._memory.slots.share(_slots(lease))
        self._open.append(lease)
        return lease

    def end(self, lease: Lease) -> bool:
        """Give the memory back; False when the time was over already, and then what is pending must be dropped."""
        if lease not in self._open:
            return False
        self._open.remove(lease)
        self._memory.blocks.release(lease.block_ids)
        self._memory.slots.release(_slots(lease))
        return True

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        for lease in [lease for lease in self._open if lease.expires_at <= now]:
            self.end(lease)


def _slots(lease: Lease) -> tuple[int, ...]:
    return (lease.state_slot,) if lease.state_slot else ()
