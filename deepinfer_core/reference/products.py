"""Dense products on the CPU: the type in which weights are multiplied, and products that do not depend on company.

Dequantised FP8 and FP4 values are exact in bf16, so only the order of summation differs from the reference.
The type follows the machine: bf16 where the processor multiplies it, else float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dense
from deepinfer_core.reference.chunks import with_copies
from deepinfer_core.reference.rounding import ROUNDED, cast
from deepinfer_core.tensor import QuantTensor

_TRIED_ROWS = (1, 4, 8, 12, 16, 24, 32)
_TRIED_SHAPES = ((256, 256), (1024, 24), (128, 96), (96, 40), (64, 100), (64, 33), (32, 64))


@lru_cache(maxsize=1)
def has_bf16_products() -> bool:
    """True when the processor multiplies bf16 matrices; elsewhere torch emulates it, a hundred times slower."""
    questions = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # torch asks itself; no public way exists
    return any(getattr(torch.cpu, question, _no)() for question in questions)


def _no() -> bool:
    return False


def product_dtypes() -> tuple[torch.dtype, ...]:
    """Every type in which weights are multiplied, float64 apart."""
    return (torch.float32, torch.bfloat16) if has_bf16_products() else (torch.float32,)


def product_dtype(site: Site) -> torch.dtype:
    """Type in which weights are kept and multiplied at a site.

    bf16 only when the sum may be rounded to bf16 anyway: torch returns the product in the operands' type.
    """
    if site.dtype == "f64":
        return torch.float64
    if site.attributes.get("out") == "bf16" and site.facts.get("bf16_products") == "yes":
        return torch.bfloat16
    return torch.float32


def pack_dense(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Dense, exact copies of every weight, transposed: ``[..., in, out]`` views of contiguous ``[..., out, in]``."""
    dtype = product_dtype(site)
    return {name: dense(weight, dtype).contiguous().transpose(-1, -2) for name, weight in weights.items()}


def rows_of(x: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    """Rows as a dense tensor of ``dtype``."""
    if isinstance(x, QuantTensor):
        return cast(x.data, dtype) if x.storage == ROUNDED else dense(x, dtype)
    return cast(x, dtype)


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows @ weight``, in company enough (:func:`fewest_rows`) for a row's bits not to depend on the others."""
    count, fewest = rows.shape[0], fewest_rows(rows.dtype)
    if count >= fewest or not count:
        return torch.mm(rows, weight)
    return torch.mm(with_copies(rows, fewest), weight)[:count]


@lru_cache(maxsize=4)
def fewest_rows(dtype: torch.dtype) -> int:
    """Rows from which on a product gives each row the same bits, whichever rows are beside it; 0 for no such number.

    Libraries multiply very few rows with other kernels, and split rows over threads. No library states the
    numbers, so they are tried, once, with the threads that the process has then.
    """
    generator = torch.Generator().manual_seed(0)
    tried = [(_normal(generator, 97, k).to(dtype), _normal(generator, n, k).to(dtype).t()) for k, n in _TRIED_SHAPES]
    return next((count for count in _TRIED_ROWS if all(_agree(rows, weight, count) for rows, weight in tried)), 0)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _agree(rows: Tensor, weight: Tensor, fewest: int) -> bool:
    """Whether ``fewest`` rows and more, from the middle, give what they give among all rows."""
    whole = torch.mm(rows, weight)
    counts = (*range(fewest, fewest + 8), 2 * fewest + 1, 50)
    return all(torch.equal(torch.mm(rows[3 : 3 + count], weight), whole[3 : 3 + count]) for count in counts)
