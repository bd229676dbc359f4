"""Tensors that are more than one array: quantised values, packed weights, cache storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.dtypes import FORMATS, Format

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """Values in a quantised format; only ops look inside.

    The canonical storage is described here. A backend may keep its own (``storage`` other than
    ``"canonical"``) between its own ops; ``quantize.dequantize`` then gives the values back.

    Attributes:
        data: ``[..., width]`` float8 for e4m3, ``[..., width / 2]`` uint8 for e2m1.
        scale: One byte per group: ``[..., width / group]`` uint8, for blocks ``[rows / 32, width / 32]``.
        format: Name in :data:`deepinfer_core.dtypes.FORMATS`.
        storage: ``"canonical"`` or a backend's own word.
    """

    data: Tensor
    scale: Tensor
    format: str
    storage: str = "canonical"

    @property
    def spec(self) -> Format:
        return FORMATS[self.format]

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: as if every value were stored unpacked."""
        *rows, width = self.data.shape
        packed = self.storage == "canonical" and self.spec.element == "e2m1"
        return (*rows, width * 2 if packed else width)

    def __getitem__(self, rows: Any) -> QuantTensor:
        """Select along the leading axes (not for block formats, whose scales span rows)."""
        return QuantTensor(self.data[rows], self.scale[rows], self.format, self.storage)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A weight in the private layout of the backend that packed it."""

    payload: Any
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Storage of one cache kind of one layer: opaque bytes to everything but the cache ops.

    Paged caches have one row of ``storage`` per block, per-sequence caches one per state slot.
    Slot numbers are flat: ``block * rows_per_block + offset``; block 0 is a dummy that is never read.

    Attributes:
        storage: ``[blocks, bytes]`` uint8 for quantised formats.
        format: Name in :data:`deepinfer_core.dtypes.FORMATS`.
        width: Channels of one cached row.
        rows_per_block: Cached rows in one block (paged) or the ring length (per sequence).
        sectioned: All values of a block first, then all scales; otherwise row by row.
    """

    storage: Tensor
    format: str
    width: int
    rows_per_block: int
    sectioned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """``(blocks, rows per block, width)``, the logical shape."""
        return (self.storage.shape[0], self.rows_per_block, self.width)
