"""``attention.project_output`` as four launches: rotate back and quantise, first map, quantise, second map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.linear import run_grouped_linear, run_linear
from deepinfer_cuda.ops.linear_weight import pack_linear
from deepinfer_cuda.ops.quantize import run_quantize
from deepinfer_cuda.ops.rotary import CHANNELS, rotate_back_quantize, rotate_back_through_mxfp8

if TYPE_CHECKING:
    from torch import Tensor

_FEW_ROWS = 64
"""More rows than these are read as bf16 by the linear maps, so they are written as bf16 at once."""


def pack_project_output(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Both weights as the linear kernels want them; only the first one has groups."""
    one_group = replace(site, attributes={**site.attributes, "groups": 1})
    return {
        "output_a": pack_linear({"weight": weights["output_a"]}, site)["weight"],
        "output_b": pack_linear({"weight": weights["output_b"]}, one_group)["weight"],
    }


def run_project_output(
    attended: Tensor,
    positions: Tensor,
    table: Tensor,
    output_a: Tensor | Packed,
    output_b: Tensor | Packed,
    *,
    groups: int,
    quantize_input: bool,
    out: str,
) -> Tensor:
    """``attention.project_output`` with weights from :func:`pack_project_output`."""
    del quantize_input
    rows: Tensor | QuantTensor
    if attended.shape[0] > _FEW_ROWS:
        rows = rotate_back_through_mxfp8(attended, positions, table)
    else:
        rows = rotate_back_quantize(attended, positions, table)
    inner = run_grouped_linear(rows, output_a, groups=groups, out=out)
    return run_linear(run_quantize(inner, format="mxfp8"), output_b, out=out)


_LIMITS = (dtype_in("bf16"), attribute_in("quantize_input", True), attribute_in("out", "bf16", "f32"), CHANNELS)

IMPLEMENTATIONS = {
    project_output: (
        Implementation(run_project_output, _LIMITS, pack=pack_project_output, row_invariant=True, note="four launches"),
    ),
}
