"""Rounding and records of compiled kernels against the definitions, on every code and at every edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.kv_cache.records import read_records, write_records
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.reference.compiled_codes import Records, e2m1_code, e4m3_code, read_record
from deepinfer_core.reference.compiled_rows import run_quantize, run_store
from deepinfer_core.tensor import Cache

FORMATS_OF_CACHES = ("mxfp8", "mxfp4", "fp4_e4m3")


def _cache(format: str, *, sectioned: bool = False, fill: int = 0) -> Cache:
    pool = torch.full((3, 7 * FORMATS[format].record_bytes(64) + 10), fill, dtype=torch.uint8)
    return Cache(pool[:, 2:], format, 64, 7, sectioned=sectioned)


def _rows(count: int) -> torch.Tensor:
    """Rows of very different sizes, with zeros and numbers halfway between codes."""
    rows = torch.randn(count, 64, generator=torch.Generator().manual_seed(1))
    rows *= 2.0 ** torch.arange(-20, count - 20).unsqueeze(1)
    rows[:, ::9] = 0.0
    rows[:, 1::9] = rows.abs().amax(1, keepdim=True) * 0.40625
    return rows


def test_every_e4m3_code_is_found_from_its_value() -> None:
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()

    assert [e4m3_code(np.float32(value)) for value in values.tolist()] == list(range(127))


def test_halfway_between_e2m1_codes_the_even_one_is_taken() -> None:
    halfway = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

    assert [e2m1_code(np.float32(value)) for value in halfway] == [0, 2, 2, 4, 4, 6, 6]
    assert [e2m1_code(np.float32(-value)) for value in halfway] == [8, 10, 10, 12, 12, 14, 14]


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_rounded_rows_are_what_quantising_and_dequantising_leaves(format: str) -> None:
    rows = _rows(41)

    rounded = run_quantize(rows, format=format).data

    assert torch.equal(rounded, dequantize_values(quantize_rows(rows, FORMATS[format]), torch.float32))


@pytest.mark.parametrize("sectioned", [False, True])
@pytest.mark.parametrize("format", FORMATS_OF_CACHES)
def test_stored_rows_have_the_bytes_of_the_definition_and_leave_the_others(format: str, sectioned: bool) -> None:
    slots = torch.tensor([20, 3, -1, 8], dtype=torch.int32)
    rows = _rows(24)[20:]
    expected, made = (_cache(format, sectioned=sectioned, fill=77) for _ in range(2))
    write_records(expected, slots, quantize_rows(rows, FORMATS[format]))

    run_store(rows, slots, made)

    assert torch.equal(made.storage, expected.storage)


@pytest.mark.parametrize("sectioned", [False, True])
@pytest.mark.parametrize("format", FORMATS_OF_CACHES)
def test_records_are_decoded_to_the_values_of_the_definition(format: str, sectioned: bool) -> None:
    cache = _cache(format, sectioned=sectioned)
    run_store(_rows(21), torch.arange(21, dtype=torch.int32), cache)
    records, row = Records.of(cache), np.empty(64, np.float32)

    for slot in (0, 6, 7, 20):
        read_record(records.bytes, slot, records.layout, records.group, records.factors, row)
        expected = dequantize_values(read_records(cache, torch.tensor([slot], dtype=torch.int32)), torch.float32)
        assert np.array_equal(row, expected[0].numpy())
