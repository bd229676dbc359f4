"""The packed layout of FP8 weights, on the host."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.ops.linear_weight import Fp8Weight, pack_fp8


def _weight(rows: int, width: int, scale: int = 120) -> QuantTensor:
    codes = torch.arange(rows * width, dtype=torch.int64).remainder(120).to(torch.uint8).view(rows, width)
    scales = torch.full((rows // 32, width // 32), scale, dtype=torch.uint8)
    return QuantTensor(codes.view(torch.float8_e4m3fn), scales, "fp8_block32")


def _payload(weight: QuantTensor, groups: int = 1) -> Fp8Weight:
    return pack_fp8(weight, groups).payload


def test_rows_eight_apart_alternate_by_pairs_of_channels() -> None:
    weight = _weight(256, 128)
    codes = weight.data.view(torch.uint8)

    packed = _payload(weight).data.view(torch.uint8)

    upper, lower = packed.view(16, 8, 64, 2, 2).unbind(3)
    assert torch.equal(upper.reshape(16, 8, 128), codes.view(16, 2, 8, 128)[:, 0])
    assert torch.equal(lower.reshape(16, 8, 128), codes.view(16, 2, 8, 128)[:, 1])


def test_what_is_missing_to_a_whole_tile_is_zero_in_each_group() -> None:
    packed = _payload(_weight(64, 96), groups=2)

    assert packed.data.shape == (2 * 256 // 2, 2 * 128)
    assert int((packed.data.view(torch.uint8) != 0).sum()) == int((_weight(64, 96).data.view(torch.uint8) != 0).sum())
    assert (packed.num_out, packed.width, packed.padded_width) == (32, 96, 128)


def test_a_factor_is_its_scale_times_a_power_of_two() -> None:
    packed = _payload(_weight(32, 32, scale=120))

    assert packed.factor[0, 0].item() == 2.0 ** (120 - 127 + 96)


def test_a_scale_that_no_factor_can_carry_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedByBackend, match=r"scale of 2\^32, at most 2\^31"):
        pack_fp8(_weight(32, 32, scale=159), groups=1)
