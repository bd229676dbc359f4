"""What the registry knows about the CUDA backend before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import ProbeResult
from deepinfer_core.backend.machine import Machine, count_visible

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend

DRIVER = "libcuda.so.1"
NO_DEVICE_CODE = "this version of deepinfer-cuda is a skeleton without device code"
"""Why the backend is not usable even where nothing is missing; goes when ``backend.py`` has a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaInfo:
    """The entry point ``cuda``.

    Attributes:
        interface_version: The version of the protocols that this backend was written for.
        machine: Where to look for devices and libraries.
        environ: Read for ``CUDA_VISIBLE_DEVICES`` only.
    """

    name: str = "cuda"
    interface_version: int = 1
    priority: int = 100
    install_hint: str = "install the NVIDIA driver and a CUDA build of torch"
    machine: Machine = field(default_factory=Machine)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def probe(self) -> ProbeResult:
        """Look for device nodes, the driver and a CUDA build of torch; no driver call is made."""
        problems = self._problems()
        visible = self.environ.get("CUDA_VISIBLE_DEVICES")
        num_devices = count_visible(len(self._nodes()), visible)
        if self._nodes() and num_devices == 0:
            problems.append(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
        problems.append(NO_DEVICE_CODE)
        return ProbeResult(usable=False, reason="; ".join(problems), device_count=num_devices)

    def prepare_process(self) -> Mapping[str, str]:
        """Nothing to set."""
        return {}

    def load(self) -> Backend:
        """Import the backend."""
        from deepinfer_cuda.backend import CudaBackend

        return CudaBackend()

    def _nodes(self) -> tuple[str, ...]:
        """One node for each GPU; under WSL one for all of them."""
        return self.machine.device_nodes(r"nvidia\d+") or self.machine.device_nodes("dxg")

    def _problems(self) -> list[str]:
        """Everything that is missing, each in words."""
        problems: list[str] = []
        if not self._nodes():
            problems.append("no NVIDIA GPU found (no /dev/nvidia*)")
        if why := self.machine.library_problem(DRIVER):
            problems.append(f"no NVIDIA driver found ({why})")
        torch = self.machine.find_package("torch")
        if torch is None:
            problems.append("torch is not installed")
        elif not (torch / "lib" / "libtorch_cuda.so").exists():
            problems.append("torch is not a CUDA build (no libtorch_cuda.so)")
        return problems
