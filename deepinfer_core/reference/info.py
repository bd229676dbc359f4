"""What the registry knows about the CPU backend before anything heavy is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import INTERFACE_VERSION, ProbeResult

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """The backend that is always there: references, and native implementations where they are faster."""

    name: str = "cpu"
    interface_version: int = INTERFACE_VERSION
    priority: int = 0
    install_hint: str = "pip install torch"

    def probe(self) -> ProbeResult:
        """Usable wherever torch is installed."""
        if importlib.util.find_spec("torch") is None:
            return ProbeResult(usable=False, reason="torch is not installed")
        return ProbeResult(usable=True, reason="torch runs on every host", device_count=1)

    def prepare_process(self) -> Mapping[str, str]:
        """Nothing to set."""
        return {}

    def load(self) -> Backend:
        """Import torch and the backend."""
        from deepinfer_core.reference.backend import CpuBackend

        return CpuBackend()
