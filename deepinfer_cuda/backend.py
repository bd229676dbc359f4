"""The CUDA backend: device and table of implementations, readable top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.errors import CapacityError
from deepinfer_cuda.device import CudaDevice
from deepinfer_cuda.interpreter import InterpretedDevice, is_interpreting
from deepinfer_cuda.ops import TABLE

if TYPE_CHECKING:
    from deepinfer_core.backend.device import Device


class CudaBackend:
    """Kernels in Triton, on NVIDIA GPUs of compute capability 9.0 or more, or in Triton's interpreter."""

    name = "cuda"

    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}

    @property
    def table(self) -> OpTable:
        """Every op that has a kernel, family by family (``deepinfer_cuda.ops``)."""
        return TABLE

    @property
    def capabilities(self) -> Capabilities:
        """The interpreter has none: it records nothing and has no queue to wait for."""
        if is_interpreting():
            return Capabilities()
        return Capabilities(graph_capture=True, no_sync_scope=True, pinned_memory=True, streams=True, asynchronous=True)

    def device(self, index: int = 0) -> Device:
        """The GPU with this index, or the interpreter.

        Raises:
            CapacityError: There is no such device.
        """
        count = 1 if is_interpreting() else torch.cuda.device_count()
        if not 0 <= index < count:
            raise CapacityError(f"backend 'cuda' has {count} devices; there is no device {index}")
        if index not in self._devices:
            self._devices[index] = InterpretedDevice() if is_interpreting() else CudaDevice(index)
        return self._devices[index]
