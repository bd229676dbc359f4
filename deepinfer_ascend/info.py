"""What the registry knows about the Ascend backend before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import ProbeResult
from deepinfer_core.backend.machine import Machine, count_visible

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend

RUNTIME = "libascendcl.so"
NO_DEVICE_CODE = "this version of deepinfer-ascend is a skeleton without device code"
"""Why the backend is not usable even where nothing is missing; goes when ``backend.py`` has a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendInfo:
    """The entry point ``ascend``.

    Attributes:
        interface_version: The version of the protocols that this backend was written for.
        machine: Where to look for devices and libraries.
        environ: Read for ``ASCEND_RT_VISIBLE_DEVICES`` only.
    """

    name: str = "ascend"
    interface_version: int = 1
    priority: int = 100
    install_hint: str = "install the Ascend driver and CANN, source CANN's set_env.sh, then install torch_npu"
    machine: Machine = field(default_factory=Machine)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def probe(self) -> ProbeResult:
        """Look for device nodes, CANN and torch_npu.

        torch_npu is looked up, never imported: without CANN its import fails, and does so with different
        exceptions.
        """
        problems = self._problems()
        visible = self.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        num_devices = count_visible(len(self._nodes()), visible)
        if self._nodes() and num_devices == 0:
            problems.append(f"ASCEND_RT_VISIBLE_DEVICES={visible!r} hides every NPU")
        problems.append(NO_DEVICE_CODE)
        return ProbeResult(usable=False, reason="; ".join(problems), device_count=num_devices)

    def prepare_process(self) -> Mapping[str, str]:
        """Nothing to set."""
        return {}

    def load(self) -> Backend:
        """Import the backend."""
        from deepinfer_ascend.backend import AscendBackend

        return AscendBackend()

    def _nodes(self) -> tuple[str, ...]:
        """One node for each NPU; ``davinci_manager`` is not one of them."""
        return self.machine.device_nodes(r"davinci\d+")

    def _problems(self) -> list[str]:
        """Everything that is missing, each in words."""
        problems: list[str] = []
        if not self._nodes():
            problems.append("no Ascend NPU found (no /dev/davinci*)")
        no_cann = self.machine.library_problem(RUNTIME)
        if no_cann:
            problems.append(f"no CANN found ({no_cann})")
        if self.machine.find_package("torch_npu") is None:
            problems.append("torch_npu is not installed")
        elif no_cann:
            problems.append(
                "torch_npu without CANN breaks 'import torch' (uninstall it, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
            )
        return problems
