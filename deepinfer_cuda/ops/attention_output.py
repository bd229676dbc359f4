"""``attention.project_output`` as four launches: rotate back and quantise, first map, quantise, second map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.linear import product_bytes, run_grouped_linear, weight_room, write_product
from deepinfer_cuda.ops.linear_weight import pack_linear
from deepinfer_cuda.ops.quantize import run_quantize
from deepinfer_cuda.ops.rotary import CHANNELS, rotate_back_quantize, rotate_back_through_mxfp8
from deepinfer_cuda.scratch import SCRATCH_BYTES, piece_bytes, row_pieces

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
    """``attention.project_output`` with weights from :func:`pack_project_output`; many rows piece by piece."""
    del quantize_input
    num_rows, num_heads, channels = attended.shape
    widths = num_heads * channels, output_a.shape[0], output_b.shape[0]
    result = torch.empty((num_rows, widths[2]), dtype=TORCH_DTYPES[out], device=attended.device)
    room = SCRATCH_BYTES - _decoded_weight_room(num_rows, *widths, groups)
    for piece in row_pieces(num_rows, _bytes_per_row(*widths, groups, out), room):
        rows = _rotate_back(attended[piece], positions[piece], table)
        inner = run_grouped_linear(rows, output_a, groups=groups, out=out)
        del rows  # the second map takes its room
        write_product(run_quantize(inner, format="mxfp8"), output_b, 1, result[piece])
        del inner
    return result


def _rotate_back(attended: Tensor, positions: Tensor, table: Tensor) -> Tensor | QuantTensor:
    if attended.shape[0] > _FEW_ROWS:
        return rotate_back_through_mxfp8(attended, positions, table)
    return rotate_back_quantize(attended, positions, table)


def _bytes_per_row(width: int, inner: int, hidden: int, groups: int, out: str, *, few: bool = False) -> int:
    """What a row takes at most: with the first map its rotated heads, with the second one its inner row in MXFP8.

    Args:
        width: Channels of all heads.
        inner: Channels between the maps.
        hidden: Channels of the result.
        groups: Groups of the first map.
        out: Element type of inner rows.
        few: Of few rows, whose heads are in MXFP8, so that the first map may have to decode them.
    """
    heads = _mxfp8_bytes(width) if few else 2 * width
    first = heads + product_bytes(inner, width, groups, decoded=few)
    second = _mxfp8_bytes(inner) + product_bytes(hidden, inner, 1, decoded=True)
    return inner * TORCH_DTYPES[out].itemsize + max(first, second)


def _decoded_weight_room(num_rows: int, width: int, inner: int, hidden: int, groups: int) -> int:
    """What either map takes for its weight, one after the other."""
    return max(weight_room(num_rows, inner, width, groups), weight_room(num_rows, hidden, inner, 1))


def _mxfp8_bytes(width: int) -> int:
    return width + width // FORMATS["mxfp8"].group


def project_output_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``attention.project_output``; ``O`` is the width between the maps."""
    sizes, attributes = site.sizes, site.attributes
    shape = sizes["N"] * sizes["D"], sizes["O"], sizes["H"], attributes["groups"], attributes["out"]
    few = min(request.rows, _FEW_ROWS) * _bytes_per_row(*shape, few=True)
    weight = _decoded_weight_room(request.rows, *shape[:4])
    return max(weight + piece_bytes(request.rows, _bytes_per_row(*shape), SCRATCH_BYTES - weight), few)


_LIMITS = (dtype_in("bf16"), attribute_in("quantize_input", True), attribute_in("out", "bf16", "f32"), CHANNELS)

IMPLEMENTATIONS = {
    project_output: (
        Implementation(
            run_project_output,
            _LIMITS,
            pack=pack_project_output,
            row_invariant=True,
            note="four launches",
            workspace=project_output_workspace,
        ),
    ),
}
