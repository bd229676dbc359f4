"""The CPU backend: every op's reference, and native implementations where they are faster."""

from __future__ import annotations

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.errors import CapacityError
from deepinfer_core.reference.device import HostDevice
from deepinfer_core.reference.table import TABLE


class CpuBackend:
    """Runs everywhere torch does; the definition of every result."""

    name = "cpu"
    table: OpTable = TABLE
    capabilities = Capabilities(weight_copies=("auto", "dense", "packed"))

    def __init__(self) -> None:
        self._device = HostDevice()

    def device(self, index: int = 0) -> HostDevice:
        """The host.

        Raises:
            CapacityError: ``index`` is not 0.
        """
        if index != 0:
            raise CapacityError(f"backend 'cpu' has one device, the host; there is no device {index}")
        return self._device
