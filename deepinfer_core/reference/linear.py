"""Linear maps on the CPU: weights are dequantised once, at load, and multiplied as dense matrices.

Dequantised FP8 and FP4 values are exact in bf16, so only the order of summation differs from the reference.
The type of the copies follows the machine: bf16 where the processor multiplies it, else float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dense
from deepinfer_core.tensor import QuantTensor


def has_bf16_matmul() -> bool:
    """True when the processor has bf16 matrix instructions; without them bf16 products are emulated and slow."""
    # There is no public question; a torch that renames this one answers no, which is slower and never wrong.
    capability = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(capability and capability())


def product_dtype(site: Site, *, out: str = "") -> torch.dtype:
    """Type in which weights are kept and multiplied at a site.

    bf16 only when the sum may be rounded to bf16 anyway: torch returns the product in the operands' type.
    """
    if site.dtype == "f64":
        return torch.float64
    if site.dtype == "bf16" and out in ("", "bf16") and has_bf16_matmul():
        return torch.bfloat16
    return torch.float32


def pack_dense(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Dense, exact copies of every weight."""
    dtype = product_dtype(site, out=site.attributes.get("out", "f32"))
    return {name: dense(weight, dtype).contiguous() for name, weight in weights.items()}


def rows_of(x: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    """Rows as a dense tensor of ``dtype``."""
    return dense(x, dtype)


def run_linear(x: Tensor | QuantTensor, weight: Tensor, *, out: str) -> Tensor:
    """``linear.linear`` with a packed weight."""
    return (rows_of(x, weight.dtype) @ weight.T).to(TORCH_DTYPES[out])


def run_grouped_linear(x: Tensor | QuantTensor, weight: Tensor, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear`` with a packed weight: one batched product over groups."""
    rows = rows_of(x, weight.dtype).unflatten(-1, (groups, -1)).transpose(0, 1)
    maps = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    return torch.bmm(rows, maps).transpose(0, 1).flatten(1).to(TORCH_DTYPES[out])


def run_vocabulary_logits(x: Tensor, head: Tensor) -> Tensor:
    """``embedding.vocabulary_logits`` with a packed head."""
    return x.to(head.dtype) @ head.T


def dense_implementation(run: Callable[..., Tensor]) -> Implementation:
    """A native implementation that multiplies dense copies of the weights."""
    return Implementation(run, pack=pack_dense, note="weights dequantised once; dense product")
