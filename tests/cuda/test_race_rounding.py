"""The logarithm of a race is rounded operation by operation: no compiler fuses a product with a sum."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="the wheel of triton is for Linux")

import triton.language as tl  # noqa: E402

from deepinfer_core.ops.sampling.arrivals import LN2, SERIES  # noqa: E402
from deepinfer_cuda.compiling import compile_launch  # noqa: E402
from deepinfer_cuda.kernels.race import exponential  # noqa: E402
from deepinfer_cuda.launch import Launch  # noqa: E402


@triton.jit
def exponential_kernel(words_ptr, result_ptr):
    high, low = tl.load(words_ptr), tl.load(words_ptr + 1)
    number = exponential(high.to(tl.uint32, bitcast=True), low.to(tl.uint32, bitcast=True))
    tl.store(result_ptr, number)


@pytest.fixture
def ptx(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    words, result = (torch.empty(2, dtype=dtype, device="meta") for dtype in (torch.int32, torch.float64))
    return compile_launch(Launch(exponential_kernel, (1,), (words, result), {}, 1, 1), request.param).ptx


@pytest.mark.parametrize("ptx", [90, 100], indirect=True)
def test_no_product_is_fused_and_every_other_may_not_be(ptx: str) -> None:
    sums, products = re.findall(r"\b(?:add|sub)\S*\.f64", ptx), re.findall(r"\bmul\.rn\.f64", ptx)

    assert not re.findall(r"\b(?:fma|mad)\S*\.f64", ptx)
    assert len(re.findall(r"\bdiv\.rn\.f64", ptx)) == len(re.findall(r"\bdiv\S*\.f64", ptx)) == 1
    assert len(products) == len(SERIES) + 2, "square, series, n ln 2 and the last product"
    assert len(sums) == len(SERIES) + 3, "1 - m, 1 + m, series, s + s and the last sum"


@pytest.mark.parametrize("ptx", [90, 100], indirect=True)
def test_constants_are_those_of_core(ptx: str) -> None:
    found = {int(digits, 16) for digits in re.findall(r"0d([0-9A-Fa-f]{16})", ptx)}

    wanted = torch.tensor([LN2, *SERIES], dtype=torch.float64).view(torch.int64).tolist()

    assert set(wanted) <= found
