"""Byte layout of cached rows: where values and scales of a slot lie in a block (spec attention/04 section 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.tensor import Cache, QuantTensor


def value_bytes(cache: Cache) -> int:
    """Bytes of the values of one row."""
    return cache.width if FORMATS[cache.format].element == "e4m3" else cache.width // 2


def record_views(cache: Cache) -> tuple[Tensor, Tensor]:
    """Views ``[blocks, rows, value bytes]`` and ``[blocks, rows, scale bytes]`` of the storage."""
    rows, values = cache.rows_per_block, value_bytes(cache)
    record = FORMATS[cache.format].record_bytes(cache.width)
    used = cache.storage[:, : rows * record]
    if cache.sectioned:
        return used[:, : rows * values].unflatten(1, (rows, values)), used[:, rows * values :].unflatten(
            1, (rows, record - values)
        )
    interleaved = used.unflatten(1, (rows, record))
    return interleaved[..., :values], interleaved[..., values:]


def read_records(cache: Cache, slots: Tensor) -> QuantTensor:
    """Quantised rows of flat slot numbers (all >= 0)."""
    values, scales = record_views(cache)
    block, offset = slots.long() // cache.rows_per_block, slots.long() % cache.rows_per_block
    data = values[block, offset]
    if FORMATS[cache.format].element == "e4m3":
        data = data.view(torch.float8_e4m3fn)
    return QuantTensor(data, scales[block, offset], cache.format)


def write_records(cache: Cache, slots: Tensor, rows: QuantTensor) -> None:
    """Write quantised rows to flat slot numbers; a negative slot leaves every byte as it was.

    No host read is needed: a skipped row writes the bytes of the dummy slot 0 back to it.
    """
    values, scales = record_views(cache)
    skipped = (slots < 0).unsqueeze(-1)
    target = slots.clamp_min(0).long()
    block, offset = target // cache.rows_per_block, target % cache.rows_per_block
    values[block, offset] = torch.where(skipped, values[0, 0], rows.data.view(torch.uint8))
    scales[block, offset] = torch.where(skipped, scales[0, 0], rows.scale)
