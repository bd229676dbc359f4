"""What of the tiers a prompt could use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The payloads that belong to one hit.

    Attributes:
        blocks: Keys of the blocks, in the order in which they are worth something.
        snapshot: Key of the snapshot at their end; None without one.
        num_tokens: Tokens that need not be computed when all of it is there, with what the device has already.
    """

    blocks: tuple[bytes, ...] = ()
    snapshot: bytes | None = None
    num_tokens: int = 0

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys; the snapshot comes last, since it is of no use without the blocks before it."""
        return self.blocks if self.snapshot is None else (*self.blocks, self.snapshot)


NOTHING = Wanted()

Choose: TypeAlias = Callable[[Callable[[bytes], bool], int], Wanted]
"""Says what a prompt could use, given what tells whether a tier has a key, and how many blocks fit into memory beside a
snapshot. It may be called by any thread."""
