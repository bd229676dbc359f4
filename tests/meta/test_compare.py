"""What counts as equal, and how a difference is explained."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.conformance.check import ConformanceFailure
from deepinfer_core.conformance.compare import compare_values
from deepinfer_core.dtypes import MXFP8
from deepinfer_core.errors import InternalError
from deepinfer_core.ops.quantize.rounding import quantize_rows
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import Cache, QuantTensor

NEAR = Tolerance.elementwise("test", f32=(0.01, 0.001))
FAR = Tolerance.distance("test", f32=1e-4)
INF, NAN = float("inf"), float("nan")


def test_difference_is_explained_by_coordinate_values_units_share_and_worst():
    expected = torch.ones(2, 4)
    actual = expected.clone()
    actual[1, 2], actual[1, 3] = 1.022, 1.11

    with pytest.raises(ConformanceFailure) as caught:
        compare_values(actual, expected, NEAR, "result")

    text = str(caught.value)
    assert "result differs first at (1, 2): got 1.02" in text
    assert "expected 1.0, off by 2 tolerances (allowed: relative 0.01 + absolute 0.001)" in text
    assert "2 of 8 elements are off (25 %, allowed 0 %)" in text
    assert "worst: off by 10 tolerances at (1, 3)" in text


@pytest.mark.parametrize("tolerance", [NEAR, FAR, Tolerance.exact()], ids=lambda t: t.kind)
@pytest.mark.parametrize(
    ("actual", "expected"), [(0.0, NAN), (NAN, 0.0), (INF, -INF), (INF, 1e30), (1e30, INF), (NAN, INF)]
)
def test_numbers_that_are_not_finite_must_be_the_same(tolerance, actual, expected):
    with pytest.raises(ConformanceFailure, match="beyond any tolerance"):
        compare_values(torch.tensor([1.0, actual]), torch.tensor([1.0, expected]), tolerance, "result")


@pytest.mark.parametrize("tolerance", [NEAR, FAR], ids=lambda t: t.kind)
def test_same_infinities_and_nan_on_both_sides_agree(tolerance):
    numbers = torch.tensor([NAN, INF, -INF, 1.0])

    compare_values(numbers.clone(), numbers, tolerance, "result")


def test_outliers_are_accepted_up_to_their_share():
    tolerance = Tolerance.elementwise("test", 0.25, f32=(0.01, 0.001))
    expected = torch.ones(8)
    two, three = expected.clone(), expected.clone()
    two[:2], three[:3] = 2.0, 2.0

    compare_values(two, expected, tolerance, "result")
    with pytest.raises(ConformanceFailure, match="allowed 25 %"):
        compare_values(three, expected, tolerance, "result")


def test_error_that_all_elements_share_is_not_rounding():
    expected = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    scattered = expected * (1.0 + 0.009 * torch.tensor([1.0, -1.0]).repeat(500))

    compare_values(scattered, expected, NEAR, "result")
    with pytest.raises(ConformanceFailure, match=r"off by the factor 1\.009 .*rounding would scatter"):
        compare_values(expected * 1.009, expected, NEAR, "result")


def test_nan_is_never_an_outlier():
    tolerance = Tolerance.elementwise("test", 0.5, f32=(0.01, 0.001))

    with pytest.raises(ConformanceFailure, match="beyond any tolerance"):
        compare_values(torch.tensor([NAN, 1.0, 1.0]), torch.ones(3), tolerance, "result")


def test_distance_is_of_the_whole_tensor():
    expected = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    one_off = expected.clone()
    one_off[7] += 0.1

    compare_values(one_off, expected, FAR, "result")
    with pytest.raises(ConformanceFailure, match=r"of the whole, allowed 0\.0001"):
        compare_values(expected * 1.02, expected, FAR, "result")


def test_distance_from_zero_is_not_ignored():
    with pytest.raises(ConformanceFailure):
        compare_values(torch.full((4,), 1e-6), torch.zeros(4), FAR, "result")


def test_exact_means_bits():
    with pytest.raises(ConformanceFailure, match="the bits must agree"):
        compare_values(torch.tensor([-0.0]), torch.tensor([0.0]), Tolerance.exact(), "result")


def test_integers_are_exact_under_any_tolerance():
    with pytest.raises(ConformanceFailure, match="the bits must agree"):
        compare_values(torch.tensor([1000]), torch.tensor([1001]), NEAR, "result")


@pytest.mark.parametrize(
    "actual",
    [torch.ones(3), torch.ones(2, dtype=torch.float64), None, (torch.ones(2),)],
    ids=["shape", "dtype", "none", "tuple"],
)
def test_other_kinds_of_result_are_refused(actual):
    with pytest.raises(ConformanceFailure):
        compare_values(actual, torch.ones(2), NEAR, "result")


def test_missing_member_of_a_tuple_is_refused():
    with pytest.raises(ConformanceFailure, match="got 1 values, expected 2 values"):
        compare_values((torch.ones(1),), (torch.ones(1), None), NEAR, "result")


def test_scale_of_a_quantised_result_is_compared():
    expected = quantize_rows(torch.ones(2, 32), MXFP8)
    actual = QuantTensor(expected.data, expected.scale + 1, expected.format)

    with pytest.raises(ConformanceFailure, match=r"result\.scale differs first at \(0, 0\): got 120, expected 119"):
        compare_values(actual, expected, Tolerance.exact(), "result")


def test_quantised_result_in_private_storage_is_compared_by_its_values():
    expected = quantize_rows(torch.ones(2, 32), MXFP8)

    compare_values(torch.ones(2, 32), expected, Tolerance.exact(), "result")
    with pytest.raises(ConformanceFailure, match=r"result \(values\)"):
        compare_values(torch.ones(2, 32) * 2, expected, Tolerance.exact(), "result")


def test_byte_of_a_cache_is_compared():
    storage = torch.zeros(2, 66, dtype=torch.uint8)
    changed = storage.clone()
    changed[1, 65] = 7

    with pytest.raises(ConformanceFailure, match=r"cache\.storage differs first at \(1, 65\): got 7, expected 0"):
        compare_values(Cache(changed, "mxfp8", 32, 2), Cache(storage, "mxfp8", 32, 2), Tolerance.exact(), "cache")


def test_tolerance_without_a_bound_for_the_type_is_a_bug_of_the_op():
    with pytest.raises(InternalError, match="no bound for bf16"):
        compare_values(torch.ones(2).bfloat16(), torch.zeros(2).bfloat16(), NEAR, "result")
