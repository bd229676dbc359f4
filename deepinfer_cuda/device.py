"""One NVIDIA GPU: memory, uploads, captured graphs, and the scope in which waiting for it is an error."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.device import MemoryInfo


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """Recorded launches; they read and write the buffers used while they were recorded."""

    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        self.graph.replay()


@dataclass(frozen=True, slots=True)
class CudaDownload:
    """Copies into pinned memory, and the event behind them."""

    tensors: tuple[Tensor, ...]
    arrived: torch.cuda.Event

    def wait(self) -> tuple[Tensor, ...]:
        self.arrived.synchronize()
        return self.tensors


class CudaTimer:
    """Marks are events of the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)

    def seconds(self) -> tuple[float, ...]:
        if self._marks:
            self._marks[-1].synchronize()
        return tuple(begin.elapsed_time(end) / 1e3 for begin, end in pairwise(self._marks))


class CudaDevice:
    """The device with one index."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._first_graph: torch.cuda.CUDAGraph | None = None
        properties = torch.cuda.get_device_properties(index)
        self._facts = {
            "architecture": f"sm{properties.major}{properties.minor}",
            "name": properties.name,
            "memory_bytes": str(properties.total_memory),
            "compute_units": str(properties.multi_processor_count),
        }

    @property
    def torch_device(self) -> torch.device:
        return self._device

    @property
    def facts(self) -> Mapping[str, str]:
        """Architecture ``sm90`` or ``sm100``, name, memory and multiprocessors."""
        return self._facts

    def memory(self) -> MemoryInfo:
        """What the driver reports once the allocator has given back what it does not use."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return MemoryInfo(free_bytes=free, total_bytes=total)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def upload(self, host: Tensor) -> Tensor:
        """Copy through pinned memory, so that the host need not wait; pinned buffers are reused once they were read."""
        staged = host if host.is_pinned() else host.contiguous().pin_memory()
        return staged.to(self._device, non_blocking=True)

    def download(self, tensors: Sequence[Tensor]) -> CudaDownload:
        """Copy into pinned memory on the current stream; torch reuses the memory once the copies were let go."""
        host = tuple(torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors)
        for there, here in zip(tensors, host, strict=True):
            here.copy_(there, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self._device))
        return CudaDownload(host, arrived)

    def capture(self, work: Callable[[], None]) -> CudaGraph:
        """Record ``work`` on a stream of its own; tensors that it makes stay where they are for every replay.

        All graphs share one pool of memory: what is kept of one recording is not given to the next, what was freed
        within it is. So graphs must not run at the same time.
        """
        if self._first_graph is None:  # kept, because a pool ends with the last graph that uses it
            self._first_graph = self._record(
                lambda: torch.zeros(1, device=self._device), torch.cuda.graph_pool_handle()
            )
        return CudaGraph(self._record(work, self._first_graph.pool()))

    def _record(self, work: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return graph

    def timer(self) -> CudaTimer:
        return CudaTimer(self._device)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Call ``work`` and return the most bytes that it asked torch for and held at once, its result included."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_stats(self._device)["requested_bytes.all.current"]
        result = work()
        torch.cuda.synchronize(self._device)
        del result
        return int(torch.cuda.memory_stats(self._device)["requested_bytes.all.peak"]) - int(before)

    def no_sync(self) -> AbstractContextManager[None]:
        return _waiting_is_an_error()


@contextmanager
def _waiting_is_an_error() -> Generator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
