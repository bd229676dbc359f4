"""Products of the CPU: bits that do not depend on company or storage, and maps kept as small as nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.quantize.rounding import dense, quantize_blocks, quantize_rows
from deepinfer_core.reference.compiled_products import (
    Maps,
    Order,
    group_maps,
    map_of_column,
    one_map,
    summation_block,
)
from deepinfer_core.reference.products import product
from deepinfer_core.tensor import QuantTensor


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _quantized(format: str, *shape: int) -> QuantTensor:
    weight = _normal(*shape)
    return quantize_blocks(weight) if format == "fp8_block32" else quantize_rows(weight, FORMATS[format])


@pytest.mark.parametrize("outputs", [160, 100, 4])
def test_one_row_has_the_bits_that_it_has_among_many(outputs: int) -> None:
    maps, rows = Maps.of([_normal(outputs, 256)]), _normal(1200, 256)

    among_many = maps(rows, one_map(1200))

    for count in (1, 2, 3):
        assert torch.equal(maps(rows[7 : 7 + count], one_map(count)), among_many[7 : 7 + count])


def test_the_kernel_sums_like_the_library_where_a_block_was_found() -> None:
    rows, weight = _normal(13, 256), _normal(160, 256)

    made = Maps.of([weight])(rows, one_map(13))

    assert torch.equal(made, product(rows, weight.t().contiguous())) == bool(summation_block(256, 160))


def test_every_row_goes_through_its_own_map() -> None:
    weights, rows = _normal(3, 48, 64), _normal(5, 64)
    order = Order(np.array([4, 0, 2, 3], np.int32), np.array([0, 1, 1, 4], np.int32))

    made = Maps.of(list(weights))(rows, order)

    expected = torch.stack([weights[0] @ rows[4], weights[2] @ rows[0], weights[2] @ rows[2], weights[2] @ rows[3]])
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-4)


def test_columns_of_rows_go_through_maps_of_their_own() -> None:
    order = map_of_column(2, 3)

    assert order.sources.tolist() == [0, 3, 1, 4, 2, 5]
    assert order.stops.tolist() == [0, 2, 4, 6]


def test_no_rows_give_no_products() -> None:
    assert Maps.of([_normal(64, 32)])(torch.empty(0, 32), one_map(0)).shape == (0, 64)


def test_large_maps_that_bf16_holds_exactly_are_kept_in_bf16() -> None:
    exact = _normal(1056, 1024).bfloat16().float()
    inexact = exact + 2.0**-20

    assert Maps.of([exact]).nbytes == 2 * exact.numel()
    assert Maps.of([inexact]).nbytes == 4 * exact.numel()
    assert Maps.of([exact[:32]]).nbytes == 4 * 32 * 1024


@pytest.mark.parametrize(("format", "bytes_of_32"), [("fp8_block32", 33), ("mxfp8", 33), ("mxfp4", 17)])
@pytest.mark.parametrize("shape", [(96, 64), (160, 448)])
def test_codes_give_the_products_of_the_numbers_that_they_stand_for(
    format: str, bytes_of_32: int, shape: tuple[int, int]
) -> None:
    weight, rows = _quantized(format, *shape), _normal(9, shape[1])
    packed, copied = Maps.of([weight], "packed"), Maps.of([weight], "dense")

    assert packed.nbytes * 32 == bytes_of_32 * shape[0] * shape[1]
    assert copied.nbytes == 4 * shape[0] * shape[1]
    for count in (1, 2, 9):
        assert torch.equal(packed(rows[:count], one_map(count)), copied(rows[:count], one_map(count)))


def test_every_code_is_read_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(32, 1)
    codes[codes & 0x7F == 0x7F] = 0
    scales = torch.arange(8, dtype=torch.uint8).repeat(32, 1) * 15
    eight = QuantTensor(codes.view(torch.float8_e4m3fn), scales, "mxfp8")
    four = QuantTensor(codes[:, :128].contiguous(), scales, "mxfp4")

    for weight in (eight, four):
        maps = Maps.of([weight], "packed")
        assert maps.nbytes < 2 * weight.shape[0] * weight.shape[1]
        assert torch.equal(maps(torch.eye(256), one_map(256)), dense(weight, torch.float32).t())


@pytest.mark.parametrize("fault", ["scale", "nan"])
def test_codes_that_kernels_would_misread_become_numbers(fault: str) -> None:
    weight = _quantized("mxfp8", 64, 64)
    if fault == "scale":
        weight.scale[0, 0] = 140
    else:
        weight.data.view(torch.uint8)[0, 0] = 0x7F

    assert Maps.of([weight], "packed").nbytes == 2 * 64 * 64 if fault == "scale" else 4 * 64 * 64


def test_maps_of_different_kinds_are_multiplied_together() -> None:
    weights = [_quantized("mxfp4", 64, 96), _quantized("mxfp4", 64, 96), _quantized("fp8_block32", 64, 96)]
    order = Order(np.array([0, 1, 2, 0, 1], np.int32), np.array([0, 1, 3, 5], np.int32))
    rows = _normal(3, 96)

    assert torch.equal(Maps.of(weights, "packed")(rows, order), Maps.of(weights, "dense")(rows, order))


@pytest.mark.parametrize("rank", [64, 48])
def test_groups_of_a_quantised_map_are_its_rows(rank: int) -> None:
    weight = _quantized("fp8_block32", 2 * rank, 64)

    parts = [dense(part, torch.float32) for part in group_maps(weight, 2)]

    assert torch.equal(torch.cat(parts), dense(weight, torch.float32))
