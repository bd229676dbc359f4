"""The device of the null backend: host memory that pretends to be a small accelerator.

Copy this file, and replace each body by what your runtime does. ``conformance/suite_backend.py`` has one
check for each sentence of the protocol (``backend/device.py``): ``deepinfer conformance --only backend/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_core.backend.device import MemoryInfo

_MEMORY_BYTES = 16 << 30
"""The same on every machine, so that what fits does not depend on where a test runs."""


@dataclass(frozen=True, slots=True)
class NullGraph:
    """Without graph capture, a graph is the work itself."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


@dataclass(frozen=True, slots=True)
class NullDownload:
    """Copies that have arrived already."""

    tensors: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Wait for the event behind the copies here."""
        return self.tensors


class NullDevice:
    """One device."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors are made: on real hardware the device type that torch knows it by, with its index."""
        return torch.device("cpu")

    @property
    def facts(self) -> Mapping[str, str]:
        """All four names, as text; limits such as ``needs_architecture`` read them."""
        return {"architecture": "none", "name": "null device", "memory_bytes": str(_MEMORY_BYTES), "compute_units": "1"}

    def memory(self) -> MemoryInfo:
        """Ask the driver here, after giving back what the allocator holds and does not use."""
        return MemoryInfo(free_bytes=_MEMORY_BYTES, total_bytes=_MEMORY_BYTES)

    def synchronize(self) -> None:
        """Wait for the queue here; there is none."""

    def upload(self, host: Tensor) -> Tensor:
        """Copy; the caller may overwrite ``host`` after the next ``synchronize``."""
        return host.clone()

    def download(self, tensors: Sequence[Tensor]) -> NullDownload:
        """Queue copies into pinned memory here, and an event behind them; do not wait."""
        return NullDownload(tuple(tensor.clone() for tensor in tensors))

    def capture(self, work: Callable[[], None]) -> NullGraph:
        """Record ``work`` here, and set ``Capabilities.graph_capture``."""
        return NullGraph(work)

    def no_sync(self) -> AbstractContextManager[None]:
        """Make waiting for the device an error here, and set ``Capabilities.no_sync_scope``."""
        return nullcontext()
