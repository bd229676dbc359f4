"""What the driver's management library says of the GPUs; it starts no CUDA context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_VERSION_BYTES = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Version of the driver, and the compute capability of every GPU in order, e.g. ``(9, 0)``."""

    version: str
    capabilities: tuple[tuple[int, int], ...]


def read_driver_facts(library: Any) -> DriverFacts | None:
    """Ask the loaded library; None when it refuses to answer, for example because the driver is not running.

    Args:
        library: ``libnvidia-ml.so.1`` as ``ctypes`` opens it.
    """
    if library.nvmlInit_v2() != _SUCCESS:
        return None
    try:
        version = ctypes.create_string_buffer(_VERSION_BYTES)
        count = ctypes.c_uint()
        if library.nvmlSystemGetDriverVersion(version, _VERSION_BYTES) != _SUCCESS:
            return None
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return None
        capabilities = tuple(_capability(library, index) for index in range(count.value))
        return DriverFacts(version=version.value.decode(), capabilities=capabilities)
    finally:
        library.nvmlShutdown()


def _capability(library: Any, index: int) -> tuple[int, int]:
    """Compute capability of one GPU; ``(0, 0)`` when it does not answer."""
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
        return (0, 0)
    if library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != _SUCCESS:
        return (0, 0)
    return (major.value, minor.value)
