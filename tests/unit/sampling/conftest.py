"""A backend without native ops on the CPU, so that everything runs as reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from deepinfer_core.backend.binding import Binder
from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.device import CapturedGraph, MemoryInfo
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.reference.device import Copies


@dataclass
class _ReplayByCall:
    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


@dataclass
class _HostDevice:
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    facts: Mapping[str, str] = field(default_factory=dict)

    def memory(self) -> MemoryInfo:
        return MemoryInfo(2**30, 2**30)

    def synchronize(self) -> None:
        return

    def upload(self, host: Tensor) -> Tensor:
        return host.clone()

    def download(self, tensors: Sequence[Tensor]) -> Copies:
        return Copies(tuple(tensors))

    def capture(self, work: Callable[[], None]) -> CapturedGraph:
        return _ReplayByCall(work)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass
class _ReferenceOnly:
    name: str = "reference_only"
    table: OpTable = field(default_factory=OpTable)
    capabilities: Capabilities = field(default_factory=Capabilities)

    def device(self, index: int = 0) -> _HostDevice:
        assert index == 0
        return _HostDevice()


@pytest.fixture
def binder() -> Binder:
    return Binder(_ReferenceOnly())
