"""Device, stream, event and captured graph: the run-time services that a backend gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes free and in all, after the allocator gave back what it does not use."""

    free_bytes: int
    total_bytes: int


class Stream(Protocol):
    """An order of device work."""

    def wait_event(self, event: Event) -> None:
        """Work queued later waits for what ``event`` recorded."""
        ...

    def synchronize(self) -> None:
        """Block the host until the work queued so far is done."""
        ...


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work queued so far on ``stream`` (the current one by default)."""
        ...

    def query(self) -> bool:
        """True when the marked work is done."""
        ...

    def synchronize(self) -> None:
        """Block the host until the marked work is done."""
        ...


class CapturedGraph(Protocol):
    """Recorded device work. Inputs and outputs live in the buffers used while it was captured."""

    def replay(self) -> None:
        """Run the recorded work on the current stream."""
        ...


class Download(Protocol):
    """Copies that are on their way to the host."""

    def wait(self) -> tuple[Tensor, ...]:
        """Block until they have arrived and return them; more calls return the same."""
        ...


class Device(Protocol):
    """One device. Tensors made here are zero-filled unless said otherwise."""

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors live."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What limits may ask: ``architecture``, ``name``, ``memory_bytes``, ``compute_units``."""
        ...

    def memory(self) -> MemoryInfo:
        """Free and total memory."""
        ...

    def synchronize(self) -> None:
        """Block the host until all work queued on this device is done."""
        ...

    def upload(self, host: Tensor) -> Tensor:
        """Copy a host tensor to the device, asynchronously where pinned memory exists."""
        ...

    def download(self, tensors: Sequence[Tensor]) -> Download:
        """Copy tensors to the host behind the work queued so far; the host does not wait for them here.

        Work that is queued later may overwrite the tensors.
        """
        ...

    def capture(self, work: Callable[[], None]) -> CapturedGraph:
        """Record ``work``, which has run before; backends without capture return a graph that calls it."""
        ...

    def no_sync(self) -> AbstractContextManager[None]:
        """A scope in which waiting for the device raises, where ``Capabilities.no_sync_scope`` says so."""
        ...


class Timer(Protocol):
    """Marks in the order of device work, and the time between them."""

    def mark(self) -> None:
        """Note when the work queued so far is done; the host does not wait."""
        ...

    def seconds(self) -> tuple[float, ...]:
        """Seconds between one mark and the next; blocks until the last was reached."""
        ...


@runtime_checkable
class MeasuresTime(Protocol):
    """A device whose work has times of its own; elsewhere the host's clock tells them."""

    def timer(self) -> Timer:
        """A timer without marks."""
        ...


class HostTimer:
    """A timer for devices whose work is done when a call returns."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(perf_counter())

    def seconds(self) -> tuple[float, ...]:
        return tuple(end - begin for begin, end in pairwise(self._marks))


def make_timer(device: Device) -> Timer:
    """The device's own timer, or the host's."""
    return device.timer() if isinstance(device, MeasuresTime) else HostTimer()


@runtime_checkable
class MeasuresAllocations(Protocol):
    """A device that can tell how much memory work takes; the kit then compares that with what was declared."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Call ``work`` once, wait for it, and return the most bytes that were asked for and held at once.

        The result of ``work`` counts; what an allocator adds to round a size does not.
        """
        ...
