"""The host as a device: work is done when a call returns, so waiting is free and a graph is a function."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepinfer_core.backend.device import MemoryInfo
from deepinfer_core.reference.products import fewest_rows, has_bf16_products, product_dtypes

_ARCHITECTURES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """A graph where nothing can be recorded: replaying calls the work again."""

    replay: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies that were made at once."""

    tensors: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        return self.tensors


class HostDevice:
    """The CPU and its memory."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def __init__(self) -> None:
        self._facts: Mapping[str, str] | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """Architecture ``x86`` or ``arm``, processor name, memory, cores that this process may use, and products.

        ``bf16_products``: ``yes`` where the processor multiplies bf16 matrices. ``row_invariant_products``: ``yes``
        where a row's product has the same bits beside any other rows, in company enough (``reference.products``).
        """
        if self._facts is None:
            machine = platform.machine().lower()
            self._facts = {
                "architecture": _ARCHITECTURES.get(machine, machine),
                "name": _processor_name() or machine,
                "memory_bytes": str(self.memory().total_bytes),
                "compute_units": str(_num_cores()),
                "bf16_products": "yes" if has_bf16_products() else "no",
                "row_invariant_products": "yes" if all(map(fewest_rows, product_dtypes())) else "no",
            }
        return self._facts

    def memory(self) -> MemoryInfo:
        """Memory of the machine; what cannot be told free counts as free."""
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        available = _available_bytes()
        return MemoryInfo(free_bytes=page * pages if available is None else available, total_bytes=page * pages)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def upload(self, host: Tensor) -> Tensor:
        return host.clone()

    def download(self, tensors: Sequence[Tensor]) -> Copies:
        return Copies(tuple(tensor.clone() for tensor in tensors))

    def capture(self, work: Callable[[], None]) -> EagerGraph:
        return EagerGraph(work)

    def no_sync(self) -> AbstractContextManager[None]:
        """A scope without effect: the host never waits for itself."""
        return nullcontext()


def _available_bytes() -> int | None:
    """Memory that can be had without swapping, where the kernel tells it."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _processor_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(file: str) -> str:
    """A file of the kernel, empty where there is none."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""
