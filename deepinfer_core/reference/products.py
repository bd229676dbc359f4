"""Dense products on the CPU: in which type weights are kept and multiplied, and rows made ready for them.

Dequantised FP8 and FP4 values are exact in bf16, so only the order of summation differs from the reference.
The type follows the machine: bf16 where the processor multiplies it, else float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dense
from deepinfer_core.reference.rounding import ROUNDED, cast
from deepinfer_core.tensor import QuantTensor


def has_bf16_products() -> bool:
    """True when the processor multiplies bf16 matrices; elsewhere torch emulates it, a hundred times slower."""
    questions = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # torch asks itself; no public way exists
    return any(getattr(torch.cpu, question, _no)() for question in questions)


def _no() -> bool:
    return False


def product_dtype(site: Site, *, out: str = "") -> torch.dtype:
    """Type in which weights are kept and multiplied at a site.

    bf16 only when the sum may be rounded to bf16 anyway: torch returns the product in the operands' type.
    """
    if site.dtype == "f64":
        return torch.float64
    if site.dtype == "bf16" and out in ("", "bf16") and has_bf16_products():
        return torch.bfloat16
    return torch.float32


def pack_dense(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Dense, exact copies of every weight, transposed: ``[..., in, out]`` views of contiguous ``[..., out, in]``."""
    dtype = product_dtype(site, out=site.attributes.get("out", "f32"))
    return {name: dense(weight, dtype).contiguous().transpose(-1, -2) for name, weight in weights.items()}


def rows_of(x: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    """Rows as a dense tensor of ``dtype``."""
    if isinstance(x, QuantTensor):
        return cast(x.data, dtype) if x.storage == ROUNDED else dense(x, dtype)
    return cast(x, dtype)
