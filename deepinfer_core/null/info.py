"""What the registry knows about the null backend; a new backend starts as a copy of this package."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import ProbeResult

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class NullInfo:
    """Right shapes and no arithmetic: for tests of everything that is not arithmetic.

    Attributes:
        interface_version: The version of the protocols that this backend was written for, as a number: were it
            read from core, core could never notice that the protocols changed.
        priority: Negative, so that ``auto`` never chooses it.
    """

    name: str = "null"
    interface_version: int = 1
    priority: int = -1
    install_hint: str = "pip install torch"

    def probe(self) -> ProbeResult:
        """Usable wherever torch is installed."""
        if importlib.util.find_spec("torch") is None:
            return ProbeResult(usable=False, reason="torch is not installed")
        return ProbeResult(usable=True, reason="runs nearly everything by reference; to be copied", device_count=1)

    def prepare_process(self) -> Mapping[str, str]:
        """Nothing to set."""
        return {}

    def load(self) -> Backend:
        """Import torch and the backend."""
        from deepinfer_core.null.backend import NullBackend

        return NullBackend()
