"""The null backend: the smallest complete backend, meant to be copied (docs/add-a-backend.md).

It computes nothing itself. It claims one op, which only moves numbers, to show how an op is claimed; all
others are run by their references on its device, and the binding report says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.errors import CapacityError
from deepinfer_core.null.device import NullDevice
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.limits import Site, attribute_in


def _append_zero_row(weights: Mapping[str, Tensor], site: Site) -> Mapping[str, Tensor]:
    """Weights in this backend's own layout: here, one more row, for ids that are not in the table.

    ``pack`` is called once at load. What it returns is seen by ``run`` alone, so it may be any layout.
    """
    table = weights["table"]
    return {"table": torch.cat((table, table.new_zeros(1, table.shape[1])))}


def _token_embedding(ids: Tensor, table: Tensor, *, out: str) -> Tensor:
    """Called like the op's reference, with the packed table; ``out`` is always ``bf16``, by the limit below."""
    zero_row = table.shape[0] - 1
    known = (ids >= 0) & (ids < zero_row)
    return table.index_select(0, torch.where(known, ids, zero_row)).to(torch.bfloat16)


_TABLE = OpTable(
    {
        # To claim an op: import its declaration, write `run` with the same parameters, state what it cannot do as
        # limits, and add it here. Several implementations of one op are tried in this order; the first whose limits
        # hold at a call site is bound there. An op that is not listed costs nothing but speed. Never call an op's
        # reference from `run`: leave the op out instead, and the report tells the truth.
        # Prove it with: deepinfer conformance --accelerator null --only embedding.token_embedding
        token_embedding: (
            Implementation(
                run=_token_embedding,
                limits=(attribute_in("out", "bf16"),),
                pack=_append_zero_row,
                row_invariant=True,  # a row is copied, wherever it stands; suite_invariance compares the bits
                note="example of a native op: copies rows",
            ),
        ),
    }
)


class NullBackend:
    """What ``NullInfo.load`` returns. A backend needs these four names and no base class."""

    name = "null"
    table: OpTable = _TABLE
    capabilities = Capabilities()  # claim an ability when the device has it; each claim is checked

    def __init__(self) -> None:
        self._device = NullDevice()

    def device(self, index: int = 0) -> NullDevice:
        """The device with this index.

        Raises:
            CapacityError: There is no such device.
        """
        if index != 0:
            raise CapacityError(f"backend 'null' has one device; there is no device {index}")
        return self._device
