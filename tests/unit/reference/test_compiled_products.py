"""Products of few rows: the kernel has the library's bits, and maps are kept as small as nothing is lost."""

from __future__ import annotations

import numpy as np
import torch

from deepinfer_core.reference.compiled_products import Maps, Order, map_of_column, multiply, one_map, summation_block
from deepinfer_core.reference.products import product


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_one_row_has_the_bits_that_it_has_among_many() -> None:
    weight = _normal(1, 256, 160)
    maps, rows = Maps.of(weight), _normal(40, 256)

    alone = maps(rows[7:8], one_map(1))
    among_many = maps(rows, one_map(40))

    assert torch.equal(alone, among_many[7:8])


def test_the_kernel_sums_like_the_library_where_a_block_was_found() -> None:
    rows, weight = _normal(13, 256), _normal(256, 160)
    block = summation_block(256, 160)

    made = multiply(rows.numpy(), weight.unsqueeze(0).numpy(), block or 256, one_map(13))

    assert np.array_equal(made, product(rows, weight).numpy()) == bool(block)


def test_every_row_goes_through_its_own_map_in_either_way() -> None:
    weights, rows = _normal(3, 64, 48), _normal(5, 64)
    order = Order(np.array([4, 0, 2, 3], np.int32), np.array([0, 1, 1, 4], np.int32))
    few, many = Maps.of(weights), Maps(weights, weights.numpy(), 0, 0)

    by_kernel, by_library = few(rows, order), many(rows, order)

    expected = torch.stack([rows[4] @ weights[0], rows[0] @ weights[2], rows[2] @ weights[2], rows[3] @ weights[2]])
    torch.testing.assert_close(by_kernel, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(by_library, expected, rtol=1e-5, atol=1e-4)


def test_columns_of_rows_go_through_maps_of_their_own() -> None:
    order = map_of_column(2, 3)

    assert order.sources.tolist() == [0, 3, 1, 4, 2, 5]
    assert order.stops.tolist() == [0, 2, 4, 6]


def test_large_maps_that_bf16_holds_exactly_are_kept_in_bf16() -> None:
    exact = _normal(1, 1024, 1056).bfloat16().float()
    inexact = exact + 2.0**-20

    assert Maps.of(exact).dense.dtype == torch.bfloat16
    assert Maps.of(inexact).dense.dtype == torch.float32
    assert Maps.of(exact[:, :, :32]).dense.dtype == torch.float32


def test_maps_kept_in_bf16_give_the_products_of_the_same_numbers_in_float32() -> None:
    exact = _normal(1, 1024, 1056).bfloat16().float()
    small, rows = Maps.of(exact), _normal(70, 1024)
    wide = Maps(exact, exact.numpy(), small.block, small.few)

    for count in (1, 5, 70):
        assert torch.equal(small(rows[:count], one_map(count)), wide(rows[:count], one_map(count)))
