"""Where the libraries come from, and when a site may use them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.limits import dtype_in, needs_architecture, needs_package
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import combine, swiglu
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_cuda.limits import needs_release
from deepinfer_cuda.ops.linear import run_grouped_linear, run_linear
from deepinfer_cuda.ops.moe import run_combine, run_swiglu
from deepinfer_cuda.ops.quantize import run_quantize

Library = Callable[[], Any]
"""Gives a library's module. Adapters take it as an argument, so that tests can hand in a stand-in."""

NOTE = "checked against a stand-in on the CPU, never run on hardware"

DEEP_GEMM_LIMITS = (
    needs_architecture("sm100"),
    needs_package("deep_gemm"),
    needs_release("deepinfer-gemm", "2.8"),
    dtype_in("bf16"),
)
FLASH_MLA_LIMITS = (
    needs_architecture("sm100", "sm103"),
    needs_package("flash_mla"),
    needs_release("deepinfer-flashmla", "1.0"),
    dtype_in("bf16"),
)

_TRITON: dict[Op[..., Any], Callable[..., Any]] = {
    combine: run_combine,
    grouped_linear: run_grouped_linear,
    linear: run_linear,
    quantize: run_quantize,
    swiglu: run_swiglu,
}


def deep_gemm() -> Any:
    """DeepGEMM; imported when it is first called, since the import loads its compiled extension."""
    return importlib.import_module("deep_gemm")


def flash_mla() -> Any:
    """FlashMLA; imported when it is first called, since the import looks for a device."""
    return importlib.import_module("flash_mla")


def triton_part(op: Op[..., Any]) -> Callable[..., Any]:
    """The Triton adapter of a step that the libraries do not cover."""
    return _TRITON[op]
