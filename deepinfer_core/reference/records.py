"""Cached rows on the CPU: found in the pools by the address of their first item, decoded by tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.kv_cache.records import value_bytes
from deepinfer_core.reference.codes import decode, encode
from deepinfer_core.reference.rounding import integer
from deepinfer_core.tensor import Cache

_ITEMS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


def read_rows(cache: Cache, slots: Tensor, into: Tensor | None = None) -> Tensor:
    """Float32 values ``[..., width]`` of flat slots; a negative slot gives zeros, whatever slot 0 holds.

    Args:
        cache: Where the rows are.
        slots: ``[...]`` int32.
        into: Where the values go, if not into a new tensor.
    """
    spec, values = FORMATS[cache.format], value_bytes(cache)
    record = spec.record_bytes(cache.width)
    places = _Places.of(slots, cache.rows_per_block)
    if cache.sectioned:
        data = places.gather(cache.storage, 0, values)
        scales = places.gather(cache.storage, cache.rows_per_block * values, record - values)
    else:
        data, scales = places.gather(cache.storage, 0, record).split_with_sizes((values, record - values), -1)
    return decode(data, scales, spec, into)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where rows are.

    Attributes:
        shape: Of the slots.
        slot: Flat slots, 0 for those that are negative.
        block: Their blocks.
        kept: Bits ``[n, 1]`` that a row keeps: all of them, or none where the slot is negative.
        rows_per_block: Rows in one block.
    """

    shape: torch.Size
    slot: Tensor
    block: Tensor
    kept: Tensor
    rows_per_block: int

    @classmethod
    def of(cls, slots: Tensor, rows_per_block: int) -> _Places:
        flat = slots.reshape(-1)
        slot = flat.clamp_min(0)
        kept = flat.bitwise_right_shift(integer(31)).bitwise_not_().unsqueeze(-1)
        return cls(slots.shape, slot, torch.floor_divide(slot, integer(rows_per_block)), kept, rows_per_block)

    def gather(self, storage: Tensor, first_byte: int, num_bytes: int) -> Tensor:
        """Bytes ``[..., num_bytes]`` of every row of a section that begins at ``first_byte`` of a block.

        The section is read as overlapping windows, one from each item on, so that rows of all blocks are one
        axis of one tensor and are copied as a whole.
        """
        size, dtype = _widest_item(storage.stride(0), storage.storage_offset(), first_byte, num_bytes)
        used = first_byte + self.rows_per_block * num_bytes
        items = storage[:, first_byte:used].view(dtype)
        width, stride = num_bytes // size, items.stride(0)
        num_windows = (items.shape[0] - 1) * stride + (self.rows_per_block - 1) * width + 1
        windows = items.as_strided((num_windows, width), (1, 1))
        slot = self.slot if num_windows < 1 << 31 else self.slot.long()
        start = torch.add(slot * integer(width), self.block, alpha=stride - self.rows_per_block * width)
        rows = windows.index_select(0, start).bitwise_and_(self.kept)
        return rows.view(torch.uint8).view(*self.shape, num_bytes)


@lru_cache(maxsize=256)
def _widest_item(*numbers: int) -> tuple[int, torch.dtype]:
    """Bytes and type of the largest items of which all these numbers of bytes are multiples."""
    return next((size, dtype) for size, dtype in _ITEMS if not any(number % size for number in numbers))


def write_rows(cache: Cache, slots: Tensor, rows: Tensor) -> None:
    """Quantise float32 rows and write each to its flat slot; a negative slot leaves every byte as it was."""
    if not slots.shape[0] or int(slots.amax()) < 0:
        return
    if int(slots.amin()) < 0:
        kept = (slots >= 0).nonzero().squeeze(1)
        slots, rows = slots.index_select(0, kept), rows.index_select(0, kept)
    spec, per_block, values = FORMATS[cache.format], cache.rows_per_block, value_bytes(cache)
    codes, scales = encode(rows, spec)
    place = (torch.floor_divide(slots, integer(per_block)), torch.remainder(slots, integer(per_block)))
    used = cache.storage[:, : per_block * spec.record_bytes(cache.width)]
    if cache.sectioned:
        all_codes, all_scales = used.split_with_sizes((per_block * values, used.shape[1] - per_block * values), 1)
        all_codes.unflatten(1, (per_block, values)).index_put_(place, codes)
        all_scales.unflatten(1, (per_block, -1)).index_put_(place, scales)
    else:
        used.unflatten(1, (per_block, -1)).index_put_(place, torch.cat((codes, scales), -1))
