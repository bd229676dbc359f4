"""Whole blocks and state slots between the device and the outer tiers, as opaque bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.device import Device, Download
    from deepinfer_core.model.step_inputs import KVCaches
    from deepinfer_core.scheduler.prefix_cache import Save
    from deepinfer_core.scheduler.step_plan import CacheLoad


class CacheTransfer:
    """Reads and writes the pools of one set of caches, in the order of the steps around it."""

    def __init__(self, caches: KVCaches, device: Device) -> None:
        self._caches = caches
        self._device = device

    @property
    def block_bytes(self) -> int:
        """Size of the payload of a block."""
        return self._place(0, is_slot=False).nbytes

    @property
    def slot_bytes(self) -> int:
        """Size of the payload of a state slot."""
        return self._place(0, is_slot=True).nbytes

    def write(self, loads: Sequence[CacheLoad]) -> None:
        """Put payloads to their places, before the steps that are launched from now on."""
        for load in loads:
            payload = torch.frombuffer(bytearray(load.payload), dtype=torch.uint8)
            self._place(load.place, is_slot=load.is_slot).copy_(self._device.upload(payload))

    def read(self, saves: Sequence[Save]) -> Download:
        """Copy places to the host, behind the steps that were launched before."""
        return self._device.download([self._place(save.place, is_slot=save.is_slot) for save in saves])

    def _place(self, number: int, *, is_slot: bool) -> Tensor:
        return (self._caches.slot_pool if is_slot else self._caches.block_pool)[number]
