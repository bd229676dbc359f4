"""Reference-counted cache blocks and state slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from deepinfer_core.errors import require


class BlockPool:
    """Ids 1 to ``size`` of equal pieces of memory, each with a count of who refers to it.

    Id 0 is the dummy that padding rows point at: it is never given out. The free list is a queue, so that what was
    freed last is reused last. A pool of state slots works the same way (spec attention/04 sections 3 and 4).
    """

    def __init__(self, size: int, noun: str = "block") -> None:
        """Start with everything free; ``noun`` names a piece in error messages."""
        self.size = size
        self._noun = noun
        self._free = deque(range(1, size + 1))
        self._references = [0] * (size + 1)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_references(self, block_id: int) -> int:
        """How many hold a piece; 0 when it is free."""
        return self._references[block_id]

    def allocate(self, count: int) -> list[int]:
        """Take pieces from the head of the free list, with one reference each.

        Raises:
            InternalError: Fewer are free; callers look at ``num_free`` first.
        """
        require(count <= len(self._free), f"{count} {self._noun}s were taken, but {len(self._free)} are free")
        taken = [self._free.popleft() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these pieces; whoever shares may read them and never write.

        Raises:
            InternalError: One of them is free.
        """
        for block_id in block_ids:
            self._require_in_use(block_id)
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each; pieces without references go to the tail of the free list, last one first.

        Raises:
            InternalError: One of them is free already.
        """
        for block_id in reversed(block_ids):
            self._require_in_use(block_id)
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free.append(block_id)

    def require_all_free(self) -> None:
        """Raise unless everything came back.

        Raises:
            InternalError: Something leaked; the message names the ids.
        """
        leaked = [block_id for block_id, count in enumerate(self._references) if count]
        require(not leaked, f"{len(leaked)} {self._noun}s were never released: {leaked[:10]}")

    def _require_in_use(self, block_id: int) -> None:
        known = 0 < block_id <= self.size
        require(known and self._references[block_id] > 0, f"{self._noun} {block_id} is not in use")
