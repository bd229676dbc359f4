"""Reference-counted cache blocks and state slots, some of them named by what they hold."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from deepinfer_core.errors import require


class BlockPool:
    """Ids of equal pieces of memory, each with a count of who refers to it.

    Ids are ``first`` to ``first + size - 1``; id 0 is the dummy that padding rows point at and is never given out. The
    free list is a queue, so that what was freed last is reused last. A pool of state slots works the same way (spec
    attention/04 sections 3 and 4).

    A piece can be **named** by a key that stands for its contents. A named piece that nobody refers to is free too, but
    keeps its contents and can be found and referred to again until it is given out; that happens when no other is left,
    to the one that was used longest ago first.

    Attributes:
        num_evictions: Named pieces that were given out for something else.
        on_change: Is told every key that begins or ceases to name a piece.
    """

    def __init__(self, size: int, noun: str = "block", *, first: int = 1) -> None:
        """Start with everything free and unnamed; ``noun`` names a piece in error messages."""
        self.size = size
        self.num_evictions = 0
        self.on_change: Callable[[bytes], object] | None = None
        self._noun = noun
        self._first = first
        self._free = deque(range(first, first + size))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * (first + size)
        self._keys: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Pieces that can be given out; named ones that nobody refers to are among them."""
        return len(self._free) + len(self._kept)

    @property
    def num_named(self) -> int:
        return len(self._keys)

    def num_references(self, block_id: int) -> int:
        """How many hold a piece; 0 when it is free."""
        return self._references[block_id]

    def find(self, key: bytes) -> int | None:
        """The piece with this name."""
        return self._named.get(key)

    def name(self, block_id: int, key: bytes) -> bool:
        """Name a piece that is in use; False, with nothing changed, if another one has the name already."""
        self._require_in_use(block_id)
        require(block_id not in self._keys, f"{self._noun} {block_id} has a name already")
        if key in self._named:
            return False
        self._keys[block_id], self._named[key] = key, block_id
        self._tell(key)
        return True

    def unname(self, key: bytes) -> None:
        """Take a name back, if a piece has it; the piece stays with those who refer to it, and is not found again."""
        block_id = self._named.pop(key, None)
        if block_id is None:
            return
        del self._keys[block_id]
        if block_id in self._kept:
            del self._kept[block_id]
            self._free.append(block_id)
        self._tell(key)

    def allocate(self, count: int) -> list[int]:
        """Take pieces from the head of the free list, with one reference each and no name.

        Raises:
            InternalError: Fewer are free; callers look at ``num_free`` first.
        """
        require(count <= self.num_free, f"{count} {self._noun}s were taken, but {self.num_free} are free")
        taken = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these pieces; whoever shares may read them and never write.

        Raises:
            InternalError: One of them is free and has no name.
        """
        for block_id in block_ids:
            if block_id in self._kept:
                del self._kept[block_id]
            else:
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
            if self._references[block_id]:
                continue
            if block_id in self._keys:
                self._kept[block_id] = None
            else:
                self._free.append(block_id)

    def touch(self, block_id: int) -> None:
        """Take note that a named piece was used: if it is free, it is reused last."""
        if block_id in self._kept:
            self._kept.move_to_end(block_id)

    def require_all_free(self) -> None:
        """Raise unless everything came back.

        Raises:
            InternalError: Something leaked; the message names the ids.
        """
        leaked = [block_id for block_id, count in enumerate(self._references) if count]
        require(not leaked, f"{len(leaked)} {self._noun}s were never released: {leaked[:10]}")

    def _evict(self) -> int:
        block_id, _ = self._kept.popitem(last=False)
        key = self._keys.pop(block_id)
        del self._named[key]
        self.num_evictions += 1
        self._tell(key)
        return block_id

    def _tell(self, key: bytes) -> None:
        if self.on_change is not None:
            self.on_change(key)

    def _require_in_use(self, block_id: int) -> None:
        known = self._first <= block_id < self._first + self.size
        require(known and self._references[block_id] > 0, f"{self._noun} {block_id} is not in use")
