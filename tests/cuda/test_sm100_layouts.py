"""What DeepGEMM and FlashMLA are given holds the same numbers as what we store, in the layouts of their contracts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import LayoutError, UnsupportedByBackend
from deepinfer_core.ops.kv_cache.records import read_records
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_blocks, quantize_rows
from deepinfer_core.tensor import Cache
from tests.cuda.stand_in_deep_gemm import scale_factors, values_of
from tests.cuda.stand_in_flash_mla import records_of

pytest.importorskip("triton", reason="the wheel of triton is for Linux")

from deepinfer_cuda.ops.sm100.expert_rows import place_rows
from deepinfer_cuda.ops.sm100.experts import pack_experts
from deepinfer_cuda.ops.sm100.layouts import block_scales_of_rows, pack_scales, pages_of
from deepinfer_cuda.ops.sm100.linear import pack_grouped_linear, pack_linear


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _exponents(*shape: int) -> Tensor:
    return torch.randint(90, 160, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("shape", [(1, 4), (3, 8), (4, 4), (67, 40), (5, 6), (3, 67, 12), (2, 1, 4)])
def test_packed_scales_hold_every_exponent_in_the_layout_of_the_contract(shape: tuple[int, ...]) -> None:
    scale = _exponents(*shape)

    factors = scale_factors(pack_scales(scale), shape[-1])

    assert torch.equal(factors, 2.0 ** (scale.double() - 127.0))


def test_the_first_of_four_exponents_is_the_lowest_byte() -> None:
    packed = pack_scales(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]], dtype=torch.uint8))

    assert packed.tolist() == [[0x04030201, 0x08070605]]


def test_scales_of_a_slice_of_wider_rows_are_packed_alike() -> None:
    wide = _exponents(9, 24)

    assert torch.equal(pack_scales(wide[:, 4:12]), pack_scales(wide[:, 4:12].clone()))


def test_a_block_scale_is_that_of_each_of_its_32_rows() -> None:
    scale = _exponents(3, 8)

    rows = block_scales_of_rows(scale)

    assert all(torch.equal(rows[row], scale[row // 32]) for row in range(96))


def test_an_fp8_weight_has_the_same_values_for_deep_gemm() -> None:
    weight = quantize_blocks(_normal(96, 256))

    packed = pack_linear({"weight": weight}, Site())["weight"]

    assert packed.shape == (96, 256)
    assert torch.equal(
        values_of((packed.payload.stored.data, packed.payload.scales)), dequantize_values(weight, torch.float64)
    )


def test_a_grouped_weight_has_the_same_values_for_deep_gemm() -> None:
    weight = quantize_blocks(_normal(4 * 64, 128))

    packed = pack_grouped_linear({"weight": weight}, Site(attributes={"groups": 4}))["weight"]

    values = values_of((packed.payload.stored.data.unflatten(0, (4, 64)), packed.payload.scales))
    assert torch.equal(values, dequantize_values(weight, torch.float64).unflatten(0, (4, 64)))


def test_expert_weights_have_the_same_values_for_deep_gemm() -> None:
    weights = {
        name: quantize_rows(_normal(3, rows, 128), FORMATS["mxfp4"]) for name, rows in (("gate_up", 256), ("down", 128))
    }

    packed = pack_experts(weights, Site())

    for name, weight in weights.items():
        payload = packed[name].payload
        assert torch.equal(values_of((payload.data, payload.scales)), dequantize_values(weight, torch.float64))


def test_fp4_bytes_are_not_rearranged() -> None:
    weight = quantize_rows(_normal(1, 128, 128), FORMATS["mxfp4"])

    packed = pack_experts({"down": weight}, Site())["down"].payload

    assert packed.data.data_ptr() == weight.data.data_ptr()
    assert packed.data.dtype == torch.int8


def _narrow() -> Any:
    return quantize_blocks(_normal(32, 96))


@pytest.mark.parametrize(
    ("pack", "weights", "words"),
    [
        (pack_linear, {"weight": _narrow()}, r"weight is \[32, 96\]"),
        (
            pack_grouped_linear,
            {"weight": quantize_blocks(_normal(96, 128))},
            "multiples of 128 channels and of 64 rows",
        ),
        (pack_experts, {"down": _normal(2, 128, 128)}, "down is torch.float32, but experts must be mxfp4"),
        (pack_experts, {"down": quantize_rows(_normal(2, 128, 64), FORMATS["mxfp4"])}, "down is 64 channels wide"),
    ],
)
def test_a_weight_that_deep_gemm_cannot_take_is_refused_at_load(pack: Any, weights: Any, words: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=words):
        pack(weights, Site(attributes={"groups": 2}))


def _section(format: str, *, block_bytes: int, offset: int = 0, rows: int = 4, sectioned: bool = False) -> Cache:
    """A layer's part of a pool of three blocks, with random bytes."""
    size = rows * FORMATS[format].record_bytes(512)
    pool = torch.randint(0, 120, (3, block_bytes), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Cache(pool[:, offset : offset + size], format, 512, rows, sectioned)


@pytest.mark.parametrize(("format", "record"), [("mxfp8", 528), ("fp4_e4m3", 288)])
def test_pages_are_the_records_of_a_section_of_a_larger_pool(format: str, record: int) -> None:
    cache = _section(format, block_bytes=8 * record, offset=2 * record)
    slots = torch.arange(12, dtype=torch.int32)

    pages = pages_of(cache)

    assert pages.data_ptr() == cache.storage.data_ptr()
    assert (pages.shape, pages.stride()[:2]) == ((3, 4, 1, record), (8 * record, record))
    assert torch.equal(records_of(pages, slots), dequantize_values(read_records(cache, slots), torch.float32))


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (_section("mxfp8", block_bytes=2176), "blocks lie 2176 bytes apart, not a multiple of a record's 528"),
        (_section("mxfp8", block_bytes=8 * 528, offset=8), "begins 8 bytes past a multiple of 16"),
        (_section("fp4_e4m3", block_bytes=4 * 288, sectioned=True), "two sections"),
    ],
)
def test_a_cache_that_flash_mla_cannot_address_is_refused_in_words(cache: Cache, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        pages_of(cache)


def _ids(rows: int, slots: int, experts: int) -> Tensor:
    """Distinct experts per row, every fifth slot empty."""
    scores = torch.rand((rows, experts), generator=torch.Generator().manual_seed(0))
    ids = scores.topk(slots).indices.to(torch.int32)
    ids.view(-1)[::5] = -1
    return ids


@pytest.mark.parametrize(
    ("rows", "slots", "experts", "alignment", "is_masked"),
    [(1, 3, 8, 128, True), (20, 2, 8, 128, True), (40, 2, 8, 16, False), (400, 1, 2, 128, False)],
)
def test_every_pair_has_its_own_row_among_those_of_its_expert(
    rows: int, slots: int, experts: int, alignment: int, is_masked: bool
) -> None:
    ids = _ids(rows, slots, experts)

    placement = place_rows(ids, experts, alignment)

    used = ids.flatten() >= 0
    owner = torch.full((placement.num_rows,), -1, dtype=torch.int32)
    begin = 0
    for expert, number in enumerate(placement.layout.tolist()):
        first = expert * placement.capacity if is_masked else begin
        end = first + number if is_masked else number
        owner[first:end] = expert
        begin = -(-end // alignment) * alignment
    assert (placement.capacity > 0) == is_masked
    assert torch.equal(owner[placement.rows[used]], ids.flatten()[used])
    assert placement.rows[used].unique().numel() == int(used.sum()) == int((owner >= 0).sum())
    assert (placement.rows[~used] == placement.num_rows).all()


def test_rows_are_placed_without_a_look_at_the_ids() -> None:
    placement = place_rows(torch.empty((64, 6), dtype=torch.int32, device="meta"), 384, 128)

    assert placement.rows.shape == (384,)
    assert placement.num_rows == 384 * 64
