"""The Ascend backend: device and table of implementations, readable top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.errors import UnsupportedByBackend

if TYPE_CHECKING:
    from deepinfer_core.backend.device import Device


class AscendBackend:
    """A skeleton that says so: an empty table, no device."""

    name = "ascend"

    @property
    def table(self) -> OpTable:
        """No op is claimed."""
        return OpTable()

    @property
    def capabilities(self) -> Capabilities:
        """None is claimed."""
        return Capabilities()

    def device(self, index: int = 0) -> Device:
        """Refuse.

        Raises:
            UnsupportedByBackend: Always; says what is missing.
        """
        missing = "this version has no device code (streams, memory, graphs)"
        raise UnsupportedByBackend(self.name, [f"device {index} was asked for, but {missing}; use accelerator 'cpu'"])
