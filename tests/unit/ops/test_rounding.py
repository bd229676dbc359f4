"""Scales, codes and bytes of the quantised formats against exact arithmetic (spec model/03, attention/01 and 04)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.quantize.rounding import (
    dequantize_values,
    e2m1_values,
    pack_nibbles,
    quantize_rows,
    to_e2m1_codes,
    to_e4m3,
    unpack_nibbles,
)
from deepinfer_core.tensor import QuantTensor

E2M1 = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
E4M3_CODES = torch.arange(0x7F, dtype=torch.uint8)
"""The finite ones without sign; 0x7F is NaN."""
E4M3 = [Fraction(v) for v in E4M3_CODES.view(torch.float8_e4m3fn).double().tolist()]


def nearest_code(x: Fraction, magnitudes: list[Fraction]) -> int:
    """Code of the nearest magnitude, the even code among two, the largest for everything beyond."""
    return min(range(len(magnitudes)), key=lambda code: (abs(magnitudes[code] - abs(x)), code % 2))


def spread(rows: int, width: int, seed: int) -> Tensor:
    """bf16 numbers of very different sizes, from group to group and within a group."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, width, generator=generator)
    exponents = torch.randint(-9, 12, (rows, width // 16), generator=generator).repeat_interleave(16, 1)
    return (normal * 2.0**exponents).bfloat16()


def round_trip(x: Tensor, format: str) -> tuple[QuantTensor, Tensor]:
    quantized = quantize_rows(x, FORMATS[format])
    return quantized, dequantize_values(quantized, torch.float32)


def positive_bfloat16() -> Tensor:
    """Every finite positive bf16 number, subnormal ones too."""
    return torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize(("format", "largest", "floor"), [("mxfp8", 448, 1e-4), ("mxfp4", 6, 6 * 2.0**-126)])
def test_exponent_of_every_positive_bfloat16_is_the_smallest_that_fits(format: str, largest: int, floor: float) -> None:
    """``largest = q * 2^k`` with q in [1/2, 1): then ``a = m * 2^n`` fits ``2^e`` from e = n - k on, or one more."""
    maxima = positive_bfloat16()
    rows = torch.zeros(len(maxima), 32, dtype=torch.bfloat16)
    rows[:, 5] = maxima

    scale = quantize_rows(rows, FORMATS[format]).scale.flatten().int() - 127

    mantissa, exponent = torch.frexp(maxima.float().clamp_min(floor).double())
    limit, shift = torch.frexp(torch.tensor(float(largest), dtype=torch.float64))
    expected = exponent - shift + (mantissa > limit).int()
    assert len(maxima) == 2**15 - 129
    assert torch.equal(scale, expected)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "fp4_e4m3"])
def test_values_are_exact_in_bfloat16(format: str) -> None:
    _, values = round_trip(spread(64, 128, seed=1), format)

    assert torch.equal(values.bfloat16().float(), values)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_rounding_again_changes_no_value_where_scales_are_powers_of_two(format: str) -> None:
    _, values = round_trip(spread(64, 128, seed=1), format)

    _, again = round_trip(values.bfloat16(), format)

    assert torch.equal(again, values)


def test_error_of_fp8_rounding_is_half_a_step() -> None:
    x = spread(64, 128, seed=2)

    quantized, values = round_trip(x, "mxfp8")

    scale = torch.exp2(quantized.scale.float() - 127).repeat_interleave(32, 1)
    normal = x.float().abs() >= 2**-6 * scale
    error = (values - x.float()).abs()
    assert normal.float().mean() > 0.8
    assert (error[normal] <= 2**-4 * x.float().abs()[normal]).all()
    assert (error[~normal] <= (2**-10 * scale)[~normal]).all()


def test_second_fp8_rounding_may_change_bytes_but_no_value() -> None:
    """A maximum that rounds down to 224 x 2^e takes the next smaller scale the second time."""
    x = torch.tensor([[225.0, 3.0, -100.0, *[1.0] * 29], [400.0, 3.0, -100.0, *[1.0] * 29]]).bfloat16()
    first, values = round_trip(x, "mxfp8")

    second, again = round_trip(values.bfloat16(), "mxfp8")

    assert (second.scale.int() - first.scale.int()).flatten().tolist() == [-1, 0]
    assert torch.equal(second.data[0].float(), 2 * first.data[0].float())
    assert torch.equal(second.data[1].float(), first.data[1].float())
    assert torch.equal(again, values)


def test_fp8_values_round_to_the_nearest_even_code_and_saturate() -> None:
    halves = torch.tensor([float((a + b) / 2) for a, b in pairwise(E4M3)])
    generator = torch.Generator().manual_seed(3)
    x = torch.cat((halves, torch.randn(500, generator=generator) * 40, torch.tensor([448.0, 464.0, 500.0, 1e9])))

    codes = to_e4m3(torch.cat((x, -x))).view(torch.uint8)

    expected = [nearest_code(Fraction(v), E4M3) for v in x.tolist()]
    assert (codes[: len(x)] & 0x7F).tolist() == expected
    assert (codes[len(x) :] & 0x7F).tolist() == expected


def test_fp4_ties_go_to_the_even_code_and_the_sign_stays() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e9, 0.0])

    codes = to_e2m1_codes(torch.cat((ties, -ties)))

    values = [0, 1, 1, 2, 2, 4, 4, 6, 6, 6, 0]
    assert e2m1_values(codes).tolist() == [*values, *(-v for v in values)]
    assert (codes[len(ties) :] >= 8).all()


@pytest.mark.parametrize("format", ["mxfp4", "fp4_e4m3"])
def test_all_sixteen_codes_survive_a_round_trip(format: str) -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 2)

    quantized, _ = round_trip(e2m1_values(codes), format)

    assert torch.equal(unpack_nibbles(quantized.data), codes)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


@pytest.mark.parametrize("format", ["mxfp4", "fp4_e4m3"])
@pytest.mark.parametrize("scale", [0.25, 1.0, 8.0])
def test_the_even_channel_is_in_the_low_nibble(format: str, scale: float) -> None:
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, :2] = torch.tensor([0.5 * scale, -6 * scale])

    quantized, _ = round_trip(x, format)

    assert quantized.data[0, 0] == 0xF1
    assert not quantized.data[0, 1:].any()


def test_entry_scales_are_numbers_and_a_zero_group_has_the_smallest() -> None:
    x = torch.cat((spread(64, 128, seed=4), torch.zeros(1, 128).bfloat16(), torch.full((1, 128), 1e30).bfloat16()))

    quantized, values = round_trip(x, "fp4_e4m3")

    scales = quantized.scale.view(torch.float8_e4m3fn).float()
    assert (scales >= 2**-9).all()
    assert (scales <= 448).all()
    assert quantized.scale[-2].eq(1).all()
    assert not quantized.data[-2].any()
    assert values[-1].eq(448 * 6).all()


def test_entry_codes_follow_the_reciprocal_and_rarely_differ_from_a_division() -> None:
    """The scale is ``e4m3(maximum / 6)``; values are multiplied by its float32 reciprocal (spec attention/04)."""
    x = spread(100, 64, seed=5)

    quantized, _ = round_trip(x, "fp4_e4m3")

    codes, groups = unpack_nibbles(quantized.data).reshape(-1, 16), x.float().reshape(-1, 16)
    scales = quantized.scale.flatten()
    for group, scale, found in zip(groups, scales, codes, strict=True):
        maximum = max(Fraction(float(group.abs().max())), Fraction(6, 512))
        assert int(scale) == nearest_code(maximum / 6, E4M3)
        inverse = 1 / E4M3_CODES[int(scale) : int(scale) + 1].view(torch.float8_e4m3fn).float()
        assert (found & 7).tolist() == [nearest_code(Fraction(v), E2M1) for v in (group * inverse).tolist()]
    divided = to_e2m1_codes(groups / scales.view(torch.float8_e4m3fn).float()[:, None])
    assert (divided != codes).float().mean() <= 0.001
