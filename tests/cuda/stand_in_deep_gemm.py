"""A stand-in for DeepGEMM 2.8 on SM100: the checks of spec dependencies 3.1, and the numbers in float64 on the CPU.

Names and order of parameters are those of the table there. What a function need not write is filled with NaN.
"""
# ruff: noqa: PLR0913, PLR0917 - the signatures are the library's

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Operand = tuple[Tensor, Tensor]
E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def scale_factors(packed: Tensor, groups: int) -> Tensor:
    """Packed exponents ``[..., rows, words]`` as float64 factors ``[..., rows, groups]``; their layout is checked."""
    rows, words = packed.shape[-2:]
    padded_rows = -(-rows // 4) * 4
    assert packed.dtype == torch.int32, packed.dtype
    assert words == -(-groups // 4), (packed.shape, groups)
    assert packed.stride()[-2:] == (1, padded_rows), packed.stride()
    if packed.dim() == 3:
        assert packed.stride(0) == packed.stride(2) * words, packed.stride()
    exponents = torch.stack([(packed >> (8 * byte)) & 0xFF for byte in range(4)], -1).flatten(-2)[..., :groups]
    return 2.0 ** (exponents.double() - 127.0)


def values_of(operand: Operand) -> Tensor:
    """Numbers of FP8 or packed FP4 data with a scale for each row and 32 channels."""
    data, scales = operand
    if data.dtype == torch.int8:
        codes = torch.stack((data & 0xF, (data >> 4) & 0xF), -1).flatten(-2)
        values = E2M1_VALUES[codes.long()].double()
    else:
        assert data.dtype == torch.float8_e4m3fn, data.dtype
        values = data.double()
    assert scales.shape[:-1] == data.shape[:-1], (scales.shape, data.shape)
    factors = scale_factors(scales, -(-values.shape[-1] // 32))
    return values * factors.repeat_interleave(32, -1)[..., : values.shape[-1]]


class DeepGemm:
    """What the adapters call.

    Args:
        alignment: Rows at a multiple of which groups begin in the contiguous layout.
    """

    def __init__(self, alignment: int = 128) -> None:
        self._alignment = alignment
        self.calls: list[str] = []

    def get_mk_alignment_for_contiguous_layout(self) -> int:
        return self._alignment

    def fp8_fp4_gemm_nt(
        self,
        a: Operand,
        b: Operand,
        d: Tensor,
        c: Tensor | None = None,
        recipe: tuple[int, int, int] | None = None,
        recipe_a: tuple[int, int] | None = None,
        recipe_b: tuple[int, int] | None = None,
        compiled_dims: str = "nk",
        disable_ue8m0_cast: bool = False,
        alpha: float | None = None,
        epilogue: Any = None,
    ) -> None:
        self.calls.append("fp8_fp4_gemm_nt")
        assert (compiled_dims, disable_ue8m0_cast, alpha, epilogue) == ("nk", False, None, None)
        assert recipe == (1, 1, 32)
        assert recipe_a is None
        assert recipe_b is None
        assert c is None
        assert a[0].is_contiguous()
        assert b[0].is_contiguous()
        assert d.is_contiguous()
        assert d.dtype in (torch.bfloat16, torch.float32)
        assert d.shape == (len(a[0]), len(b[0]))
        d.copy_(values_of(a) @ values_of(b).T)

    def fp8_einsum(
        self,
        expr: str,
        a: Operand,
        b: Operand,
        d: Tensor,
        c: Tensor | None = None,
        recipe: tuple[int, int, int] = (1, 128, 128),
        epilogue: Any = None,
    ) -> None:
        self.calls.append("fp8_einsum")
        assert epilogue is None
        assert expr == "bhr,hdr->bhd"
        assert recipe == (1, 1, 32)
        assert c is None
        (rows, heads, _), (maps, outputs, _) = a[0].shape, b[0].shape
        assert a[0].dtype == b[0].dtype == torch.float8_e4m3fn
        assert heads == maps
        assert d.dtype in (torch.bfloat16, torch.float32)
        assert d.shape == (rows, heads, outputs)
        assert d.stride(-1) == 1
        left = values_of((a[0].transpose(0, 1), a[1].transpose(0, 1)))
        d.copy_((left @ values_of(b).transpose(1, 2)).transpose(0, 1))

    def m_grouped_fp8_fp4_gemm_nt_masked(
        self,
        a: Operand,
        b: Operand,
        d: Tensor,
        masked_m: Tensor,
        expected_m: int,
        recipe: tuple[int, int, int] | None = None,
        recipe_a: tuple[int, int] | None = None,
        recipe_b: tuple[int, int] | None = None,
        epilogue: Any = None,
    ) -> None:
        self.calls.append("masked")
        assert epilogue is None
        groups = self._check_grouped(a, b, d, masked_m, recipe, recipe_a, recipe_b)
        assert expected_m > 0
        assert a[0].dim() == 3
        assert d.shape == (groups, a[0].shape[1], b[0].shape[1])
        left, right = values_of(a), values_of(b)
        d.fill_(torch.nan)
        for group, used in enumerate(masked_m.tolist()):
            assert 0 <= used <= d.shape[1]
            d[group, :used] = (left[group, :used] @ right[group].T).to(d.dtype)

    def m_grouped_fp8_fp4_gemm_nt_contiguous(
        self,
        a: Operand,
        b: Operand,
        d: Tensor,
        grouped_layout: Tensor,
        recipe: tuple[int, int, int] | None = None,
        recipe_a: tuple[int, int] | None = None,
        recipe_b: tuple[int, int] | None = None,
        use_psum_layout: bool = False,
        ensure_zero_padding: bool = True,
        expected_m_for_psum_layout: int | None = None,
        epilogue: Any = None,
    ) -> None:
        self.calls.append("contiguous")
        assert epilogue is None
        assert ensure_zero_padding
        assert expected_m_for_psum_layout is None or expected_m_for_psum_layout > 0
        self._check_grouped(a, b, d, grouped_layout, recipe, recipe_a, recipe_b)
        assert use_psum_layout, "only the form without a host read is expected"
        assert a[0].dim() == 2
        assert d.shape == (len(a[0]), b[0].shape[1])
        left, right = values_of(a), values_of(b)
        d.fill_(torch.nan)
        begin = 0
        for group, end in enumerate(grouped_layout.tolist()):
            assert begin <= end <= len(d)
            d[begin:end] = (left[begin:end] @ right[group].T).to(d.dtype)
            begin = -(-end // self._alignment) * self._alignment

    @staticmethod
    def _check_grouped(
        a: Operand, b: Operand, d: Tensor, layout: Tensor, recipe: Any, recipe_a: Any, recipe_b: Any
    ) -> int:
        assert recipe is None
        assert recipe_a == (1, 32)
        assert recipe_b == (1, 32)
        assert a[0].dtype == torch.float8_e4m3fn
        assert b[0].dtype == torch.int8
        assert a[0].is_contiguous()
        assert b[0].is_contiguous()
        assert d.is_contiguous()
        assert d.dtype == torch.bfloat16
        assert layout.dtype == torch.int32
        assert layout.shape == (len(b[0]),)
        assert layout.is_contiguous()
        return len(b[0])
