"""What the registry knows about the CUDA backend before anything heavy is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import ProbeResult
from deepinfer_core.backend.machine import Machine, count_visible
from deepinfer_cuda.nvml import LIBRARY, DriverFacts, read_driver_facts

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend

DRIVER = "libcuda.so.1"
LEAST_CAPABILITY = (9, 0)
LEAST_TRITON = (3, 6)
_LEAST_DRIVER = {"12": 525, "13": 580}
"""First driver series that runs programs of a CUDA release (NVIDIA's table of minor version compatibility)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaInfo:
    """The entry point ``cuda``.

    Attributes:
        interface_version: The version of the protocols that this backend was written for.
        machine: Where to look for devices and libraries.
        environ: Read for ``CUDA_VISIBLE_DEVICES``, and for Triton's own switch ``TRITON_INTERPRET``.
    """

    name: str = "cuda"
    interface_version: int = 1
    install_hint: str = "install the NVIDIA driver and a CUDA build of torch"
    machine: Machine = field(default_factory=Machine)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def priority(self) -> int:
        """Before the CPU; in the interpreter never chosen unless named."""
        return -1 if self._is_interpreting else 100

    def probe(self) -> ProbeResult:
        """Look for device nodes, driver, GPUs, a CUDA build of torch and Triton; no CUDA context is made."""
        if self._is_interpreting:
            problems = self._triton_problems()
            reason = "; ".join(problems) or "TRITON_INTERPRET=1: kernels run in Triton's interpreter, on the CPU"
            return ProbeResult(usable=not problems, reason=reason, device_count=0 if problems else 1)
        problems = [*self._device_problems(), *self._torch_problems(), *self._triton_problems()]
        visible = self.environ.get("CUDA_VISIBLE_DEVICES")
        num_devices = count_visible(len(self._nodes()), visible)
        if self._nodes() and num_devices == 0:
            problems.append(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
        reason = "; ".join(problems) or f"{num_devices} GPU{'s' if num_devices > 1 else ''}"
        return ProbeResult(usable=not problems, reason=reason, device_count=num_devices)

    def prepare_process(self) -> Mapping[str, str]:
        """Segments that grow, so that caches of odd sizes leave no holes."""
        return {} if self._is_interpreting else {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    def load(self) -> Backend:
        """Import the backend."""
        from deepinfer_cuda.backend import CudaBackend

        return CudaBackend()

    @property
    def _is_interpreting(self) -> bool:
        return self.environ.get("TRITON_INTERPRET") == "1"

    def _nodes(self) -> tuple[str, ...]:
        """One node for each GPU; under WSL one for all of them."""
        return self.machine.device_nodes(r"nvidia\d+") or self.machine.device_nodes("dxg")

    def _device_problems(self) -> list[str]:
        """No GPU, no driver, a driver older than torch's CUDA, or GPUs that are too old."""
        problems: list[str] = []
        if not self._nodes():
            problems.append("no NVIDIA GPU found (no /dev/nvidia*)")
        if why := self.machine.library_problem(DRIVER):
            problems.append(f"no NVIDIA driver found ({why})")
            return problems
        facts = self._driver_facts()
        if facts is None:
            return problems
        if too_old := self._driver_problem(facts.version):
            problems.append(too_old)
        if facts.capabilities and max(facts.capabilities) < LEAST_CAPABILITY:
            shown = ", ".join(f"{major}.{minor}" for major, minor in facts.capabilities)
            problems.append(f"compute capability {shown} is too old: at least 9.0 (Hopper) is needed")
        return problems

    def _driver_facts(self) -> DriverFacts | None:
        if self.machine.library_problem(LIBRARY):
            return None
        return read_driver_facts(self.machine.load_library(LIBRARY))

    def _driver_problem(self, version: str) -> str:
        """Words when the driver cannot run the CUDA release that torch was built with."""
        cuda = self._torch_cuda_version()
        needed = _LEAST_DRIVER.get(cuda.partition(".")[0], 0)
        series = version.partition(".")[0]
        if series.isdecimal() and int(series) < needed:
            return f"driver {version} is too old for torch's CUDA {cuda}: {needed} or later is needed"
        return ""

    def _torch_cuda_version(self) -> str:
        """CUDA release of the installed torch, read from its version file; empty when it is not a CUDA build."""
        torch = self.machine.find_package("torch")
        file = torch / "version.py" if torch else Path("absent")
        found = re.search(r"^cuda\b.*=\s*'([\d.]+)'", file.read_text(), re.MULTILINE) if file.exists() else None
        return found.group(1) if found else ""

    def _torch_problems(self) -> list[str]:
        torch = self.machine.find_package("torch")
        if torch is None:
            return ["torch is not installed"]
        if not (torch / "lib" / "libtorch_cuda.so").exists():
            return ["torch is not a CUDA build (no libtorch_cuda.so)"]
        return []

    def _triton_problems(self) -> list[str]:
        """Triton is absent or older than the kernels need."""
        triton = self.machine.find_package("triton")
        if triton is None:
            return ["triton is not installed (pip install triton)"]
        text = (triton / "__init__.py").read_text() if (triton / "__init__.py").exists() else ""
        found = re.search(r"__version__ = '(\d+)\.(\d+)", text)
        if found and (int(found.group(1)), int(found.group(2))) < LEAST_TRITON:
            return [f"triton {found.group(1)}.{found.group(2)} is too old: at least 3.6 is needed"]
        return []
