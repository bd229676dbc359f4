"""How much memory torch calls ask for, counted without a device's help: for host memory and tensors without storage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationCounter(TorchDispatchMode):
    """While it is active, every storage that a torch call makes counts from then until nobody refers to it any more.

    Memory that a library takes inside one call is not seen: there is no tensor for it.

    Attributes:
        current_bytes: What is alive of what was made in the scope.
        peak_bytes: The most that was alive at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current_bytes = 0
        self.peak_bytes = 0
        self._seen: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for every operator; see ``TorchDispatchMode``."""
        for storage in _storages((args, kwargs)):
            self._note(storage, 0)
        made = func(*args, **(kwargs or {}))
        for storage in _storages(made):
            self._note(storage, storage.nbytes())
        return made

    def _note(self, storage: UntypedStorage, num_bytes: int) -> None:
        key = id(storage)  # torch keeps the object of a storage as long as a tensor has it
        if key in self._seen:
            return
        self._seen[key] = weakref.ref(storage, partial(self._forget, key, num_bytes))
        self.current_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def _forget(self, key: int, num_bytes: int, _: object) -> None:
        self._seen.pop(key, None)
        self.current_bytes -= num_bytes


def counted_peak(work: Callable[[], object]) -> int:
    """The most bytes that ``work`` holds at once, its result included.

    Args:
        work: Called once; its result is kept until it returns.
    """
    with AllocationCounter() as counter:
        result = work()
    del result
    return counter.peak_bytes


def _storages(value: Any) -> Iterator[UntypedStorage]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf.untyped_storage()
        elif hasattr(leaf, "data") and hasattr(leaf, "scale"):  # a quantised tensor
            yield from _storages((leaf.data, leaf.scale))
