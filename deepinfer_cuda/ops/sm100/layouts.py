"""Our quantised tensors and caches as DeepGEMM and FlashMLA take them (spec dependencies 3.1 and 3.2).

Values need no rearranging: both libraries read e4m3 row by row and e2m1 with the even channel in the low nibble, as we
store them. Scales do: DeepGEMM wants four exponents in one int32, all rows of one column of words side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import LayoutError
from deepinfer_core.tensor import Cache

SCALES_PER_WORD = 4
"""Exponents in one int32: that of group ``4 i + j`` is byte ``j`` of word ``i``, byte 0 being the lowest."""
SCALED_CHANNELS = 32 * SCALES_PER_WORD
"""Channels whose exponents share a word."""
_ROW_UNIT = 4
"""Rows are padded to this, so that every column of words begins at a multiple of 16 bytes."""
_ADDRESS_UNIT_BYTES = 16


def pack_scales(scale: Tensor) -> Tensor:
    """Exponents of rows in DeepGEMM's packed form.

    Args:
        scale: ``[rows, groups]`` or ``[batch, rows, groups]`` uint8 (UE8M0), one byte for 32 channels.

    Returns:
        ``[..., rows, ceil(groups / 4)]`` int32, rows side by side: strides ``(words * padded rows, 1, padded rows)``
        with rows padded to a multiple of 4. Do not reshape it: the strides are the layout.
    """
    *batch, rows, groups = scale.shape
    words = pad(scale, (0, -groups % SCALES_PER_WORD)).contiguous().view(torch.int32)
    padded_rows = rows + -rows % _ROW_UNIT
    columns = torch.empty((*batch, words.shape[-1], padded_rows), dtype=torch.int32, device=scale.device)
    packed = columns.transpose(-1, -2)[..., :rows, :]
    packed.copy_(words)
    return packed


def block_scales_of_rows(scale: Tensor) -> Tensor:
    """Scales of 32x32 blocks ``[..., rows / 32, groups]``, repeated for each row ``[..., rows, groups]``."""
    return scale.repeat_interleave(FORMATS["fp8_block32"].rows, -2)


def pages_of(cache: Cache) -> Tensor:
    """A cache of interleaved records as FlashMLA's ``[blocks, rows, 1, bytes of a record]``; nothing is copied.

    FlashMLA addresses a record by one row number from the start of the cache, so a block must be contiguous and blocks
    must lie a whole number of records apart, from an address that is a multiple of 16 bytes.

    Raises:
        LayoutError: The cache does not lie like that.
    """
    record = FORMATS[cache.format].record_bytes(cache.width)
    problems: list[str] = []
    if cache.sectioned:
        problems.append("values and scales of a block lie in two sections, not record by record")
    if cache.storage.stride(1) != 1:
        problems.append(f"bytes of a block lie {cache.storage.stride(1)} apart")
    if cache.storage.stride(0) % record:
        problems.append(f"blocks lie {cache.storage.stride(0)} bytes apart, not a multiple of a record's {record}")
    if cache.storage.data_ptr() % _ADDRESS_UNIT_BYTES:
        problems.append(f"it begins {cache.storage.data_ptr() % _ADDRESS_UNIT_BYTES} bytes past a multiple of 16")
    if problems:
        raise LayoutError(f"flash_mla cannot read this {cache.format} cache in place: {'; '.join(problems)}")
    rows = cache.rows_per_block
    return cache.storage[:, : rows * record].unflatten(1, (rows, record)).unsqueeze(2)
