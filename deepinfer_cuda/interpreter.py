"""The device that Triton's interpreter runs on: host memory, for tests of kernels on a machine without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_core.backend.allocations import counted_peak
from deepinfer_core.backend.device import MemoryInfo

VARIABLE = "TRITON_INTERPRET"
"""Triton's own switch; it is read when a kernel's module is imported."""


def is_interpreting(environ: Mapping[str, str] = os.environ) -> bool:
    """True when kernels run in the interpreter in this process."""
    return environ.get(VARIABLE) == "1"


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies that were made at once."""

    tensors: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        return self.tensors


@dataclass(frozen=True, slots=True)
class RepeatedWork:
    """The interpreter records nothing: a graph is the work itself."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


class InterpretedDevice:
    """Host memory; every kernel runs program by program in NumPy."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def facts(self) -> Mapping[str, str]:
        """The facts of no hardware: limits on an architecture refuse the interpreter."""
        total = str(self.memory().total_bytes)
        return {
            "architecture": "interpreter",
            "name": "Triton interpreter",
            "memory_bytes": total,
            "compute_units": "1",
        }

    def memory(self) -> MemoryInfo:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        return MemoryInfo(free_bytes=min(page * os.sysconf("SC_AVPHYS_PAGES"), total), total_bytes=total)

    def synchronize(self) -> None:
        """Nothing is queued."""

    def upload(self, host: Tensor) -> Tensor:
        return host.clone()

    def download(self, tensors: Sequence[Tensor]) -> HostCopies:
        return HostCopies(tuple(tensor.clone() for tensor in tensors))

    def capture(self, work: Callable[[], None]) -> RepeatedWork:
        return RepeatedWork(work)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Call ``work`` and return the most bytes that its tensors held at once; NumPy's own copies do not count."""
        return counted_peak(work)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()
