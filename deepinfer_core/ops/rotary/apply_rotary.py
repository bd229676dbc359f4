"""Rotary position embedding of the trailing channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide


@op("rotary.apply_rotary", tolerance=Tolerance.one_rounding("fused multiply-add or not"), row_axis="T")
def apply_rotary(
    x: Annotated[Tensor, Shape("T", "N", "D"), Dtypes("bf16", "f32", "f64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    table: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    *,
    inverse: bool = False,
) -> Tensor:
    """Rotate adjacent channel pairs of the last ``table.shape[1]`` channels of each head.

    Wide arithmetic, one rounding (spec model/07 section 2). The other channels are copied.

    Args:
        x: Rows of heads.
        positions: Absolute position of each row, ``0 <= position < table.shape[0]``.
        table: Cosines then sines of each position (``rotary.frequencies.rotary_table``).
        inverse: Rotate by the negative angle.
    """
    y = wide(x)
    width = table.shape[1]
    cosine, sine = table[positions.long()].to(y.dtype).unsqueeze(1).chunk(2, -1)
    if inverse:
        sine = -sine
    keep, turned = y[..., :-width], y[..., -width:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
    return torch.cat((keep, pairs.flatten(-2)), -1).to(x.dtype)


def draw_table(draw: Draw, num_positions: int, width: int) -> Tensor:
    """A table for cases: random angles."""
    angle = draw.uniform(num_positions, width // 2, dtype="f64", high=6.28)
    return torch.cat((angle.cos(), angle.sin()), -1).float()


def _inputs(width: int) -> Any:
    def make(draw: Draw) -> dict[str, Any]:
        return {"positions": draw.integers(0, 40, "T"), "table": draw_table(draw, 40, width)}

    return make


@apply_rotary.cases
def _cases() -> Iterator[Case]:
    yield Case("heads", T=7, N=4, D=128, make=_inputs(64), required=True)
    yield Case("inverse", T=7, N=4, D=128, inverse=True, make=_inputs(64), required=True)
    yield Case("one_head", T=3, N=1, D=64, make=_inputs(32))
    yield Case("all_channels", T=2, N=2, D=32, make=_inputs(32))
    yield Case("no_rows", T=0, N=2, D=64, make=_inputs(32), required=True)
    yield Case("f32", T=3, N=2, D=64, make=_inputs(32), dtype="f32")
    yield Case("released_width", T=1, N=64, D=512, make=_inputs(64), bench=True)
    yield ErrorCase(
        "positions",
        T=3,
        N=1,
        D=64,
        make=_inputs(32),
        stretch=("positions", "T"),
        raises=ShapeError,
        match="positions has T=4",
    )
