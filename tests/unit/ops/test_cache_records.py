"""Stored rows lie where spec attention/04 says, byte by byte, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.kv_cache.store import load, store
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.tensor import Cache

BLOCKS, ROWS, WIDTH, TAIL = 5, 8, 512, 32
RECORD = {"mxfp8": 528, "fp4_e4m3": 288, "mxfp4": 272}
VALUES = {"mxfp8": 512, "fp4_e4m3": 256, "mxfp4": 256}


def cache_of(format: str) -> Cache:
    """Random bytes, with a tail behind each block that belongs to another layer; index keys are sectioned."""
    generator = torch.Generator().manual_seed(1)
    storage = torch.randint(0, 256, (BLOCKS, ROWS * RECORD[format] + TAIL), dtype=torch.uint8, generator=generator)
    return Cache(storage, format, WIDTH, ROWS, sectioned=format == "mxfp4")


def rows_and_slots(count: int) -> tuple[Tensor, Tensor]:
    """Rows in shuffled slots outside the dummy block."""
    generator = torch.Generator().manual_seed(2)
    slots = torch.randperm((BLOCKS - 1) * ROWS, generator=generator)[:count] + ROWS
    return torch.randn(count, WIDTH, generator=generator).bfloat16(), slots.int()


def places(format: str, slot: int) -> tuple[slice, slice]:
    """Bytes of values and of scales of a row within its block."""
    row, values, record = slot % ROWS, VALUES[format], RECORD[format]
    scales = record - values
    if format == "mxfp4":
        first = ROWS * values + row * scales
        return slice(row * values, (row + 1) * values), slice(first, first + scales)
    return slice(row * record, row * record + values), slice(row * record + values, (row + 1) * record)


@pytest.mark.parametrize("format", RECORD)
def test_a_record_has_its_values_and_its_scales_in_the_stated_bytes(format: str) -> None:
    cache, (rows, slots) = cache_of(format), rows_and_slots(20)
    quantized = quantize_rows(rows, FORMATS[format])

    store(rows, slots, cache)

    for row, slot in enumerate(slots.tolist()):
        values, scales = places(format, slot)
        assert torch.equal(cache.storage[slot // ROWS, values], quantized.data[row].view(torch.uint8))
        assert torch.equal(cache.storage[slot // ROWS, scales], quantized.scale[row])


@pytest.mark.parametrize("format", RECORD)
def test_all_other_bytes_stay_and_a_skipped_row_writes_none(format: str) -> None:
    cache, (rows, slots) = cache_of(format), rows_and_slots(20)
    slots[::3] = -1
    before = cache.storage.clone()

    store(rows, slots, cache)

    for slot in slots[slots >= 0].tolist():
        for place in places(format, slot):
            before[slot // ROWS, place] = cache.storage[slot // ROWS, place]
    assert torch.equal(cache.storage, before)


@pytest.mark.parametrize("format", RECORD)
def test_what_is_loaded_is_the_round_trip_of_what_was_stored(format: str) -> None:
    cache, (rows, slots) = cache_of(format), rows_and_slots(20)
    store(rows, slots, cache)
    order = torch.tensor([3, -1, 0, 19, 7, -1])

    found = load(torch.where(order < 0, -1, slots[order]).int(), cache, out="f32")

    expected = dequantize_values(quantize_rows(rows, FORMATS[format]), torch.float32)[order]
    expected[order < 0] = 0
    assert torch.equal(found, expected)


def test_records_of_the_released_widths_have_the_published_sizes() -> None:
    sizes = [FORMATS[name].record_bytes(width) for name, width in (("mxfp8", 512), ("fp4_e4m3", 512), ("mxfp4", 128))]

    assert sizes == [528, 288, 68]
