"""``linear`` at the released sizes, for the compile test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.linear import fp8_product, run_grouped_linear, run_linear
from deepinfer_cuda.ops.linear_tiles import product_tile
from deepinfer_cuda.ops.linear_weight import Fp8Weight

_FP8 = torch.float8_e4m3fn
_SHAPES = {"query_a_kv": (1792, 5120), "query_b": (32768, 1280), "output_b": (5120, 8192)}


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _rows(count: int, width: int) -> QuantTensor:
    return QuantTensor(_meta(count, width, dtype=_FP8), _meta(count, width // 32, dtype=torch.uint8), "mxfp8")


def _weight(out: int, width: int, groups: int = 1) -> Packed:
    """As packed; the released sizes need no padding."""
    data = _meta(out // 2, 2 * width, dtype=_FP8)
    factor = _meta(out // 32, width // 32, dtype=torch.float32)
    payload = Fp8Weight(data=data, factor=factor, groups=groups, num_out=out // groups, width=width)
    return Packed(payload, (out, width))


def _fp8(rows: int, out: int, width: int) -> Callable[[], Any]:
    return lambda: run_linear(_rows(rows, width), _weight(out, width), out="bf16")


def _dense(rows: int, out: int, width: int, dtype: torch.dtype, result: str) -> Callable[[], Any]:
    return lambda: run_linear(_meta(rows, width), _meta(out, width, dtype=dtype), out=result)


def _cut(rows: int, out: int, width: int, **change: Any) -> Callable[[], Any]:
    """A way to cut the product that the table need not choose."""
    tile = replace(product_tile("fp8", rows, out, width, 1), **change)
    return lambda: fp8_product(_rows(rows, width), _weight(out, width).payload, _meta(rows, out), tile)


_PARKED = {"weights_first": True, "spread": False, "parked": True}

CALLS: dict[str, Callable[[], Any]] = {
    **{f"{name}_{rows}_rows": _fp8(rows, *shape) for name, shape in _SHAPES.items() for rows in (1, 32, 64, 256, 4096)},
    "output_a_1_row": lambda: run_grouped_linear(_rows(1, 32768), _weight(8192, 4096, 8), groups=8, out="bf16"),
    "output_a_4096_rows": lambda: run_grouped_linear(_rows(4096, 32768), _weight(8192, 4096, 8), groups=8, out="bf16"),
    "query_b_weights_in_place": _cut(4096, 32768, 1280, weights_first=False),
    "query_b_weights_first": _cut(4096, 32768, 1280, weights_first=True),
    "output_b_held": _cut(4096, 5120, 8192, spread=False, block_rows=128, weights_first=False),
    "output_b_parked": _cut(4096, 5120, 8192, **_PARKED, chained=True),
    "query_a_kv_parked": _cut(4096, 1792, 5120, **_PARKED),
    "output_b_rows_in_place": _cut(64, 5120, 8192, rows_first=False, num_stages=3),
    "output_b_rows_first": _cut(64, 5120, 8192, rows_first=True, chained=True, block_out=64),
    "fp8_weight_only": lambda: run_linear(_meta(64, 5120), _weight(1792, 5120), out="bf16"),
    "compressor_1_row": _dense(1, 1024, 5120, torch.bfloat16, "f32"),
    "compressor_64_rows": _dense(64, 1024, 5120, torch.bfloat16, "f32"),
    "compressor_4096_rows": _dense(4096, 1024, 5120, torch.bfloat16, "f32"),
    "index_key_256_rows": _dense(256, 128, 512, torch.bfloat16, "bf16"),
    "float32_weight": _dense(64, 1024, 5120, torch.float32, "f32"),
}
"""Name -> a call of an adapter on tensors without storage."""
