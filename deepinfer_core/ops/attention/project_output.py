"""From attended heads back to the hidden size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Formats, Part, Shape, Use, composite
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import fp8_weight, linear
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary, draw_table
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.tensor import QuantTensor

_PROJECT = Tolerance.elementwise("an FP8 code may flip", 0.01, bf16=(2**-6, 2e-2), f32=(1e-4, 1e-5), f64=(1e-9, 1e-10))


@composite(
    "attention.project_output",
    parts=(
        apply_rotary,
        quantize,
        Part(grouped_linear, weights={"weight": "output_a"}),
        Part(linear, sizes={"O": "H"}, weights={"weight": "output_b"}),
    ),
    tolerance=_PROJECT,
    row_axis="T",
    weights=("output_a", "output_b"),
)
def project_output(
    use: Use,
    attended: Annotated[Tensor, Shape("T", "N", "D"), Dtypes("bf16", "f32", "f64")],
    positions: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    table: Annotated[Tensor, Shape("_", "_"), Dtypes("f32")],
    output_a: Annotated[Tensor | QuantTensor, Shape("O", "_"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    output_b: Annotated[Tensor | QuantTensor, Shape("H", "O"), Dtypes("bf16", "f32"), Formats("fp8_block32")],
    *,
    groups: int,
    quantize_input: bool,
    out: str,
) -> Tensor:
    """Inverse rotation by the query's position, then the grouped low-rank projection (spec attention/01 section 8).

    Args:
        use: Turns a step into what is bound for it.
        attended: Output of the attention core. In wide precision it is quantised straight from there
            (DeepInfer); in the activations' type it has been rounded before (other engines).
        positions: Position of each row.
        table: Rotary table of the layer.
        output_a: ``[groups * rank, heads per group * D]``.
        output_b: ``[H, groups * rank]``.
        groups: Groups of heads.
        quantize_input: Round the inputs of both projections to MXFP8.
        out: Element type of the result.
    """
    rows = use(apply_rotary)(attended, positions, table, inverse=True).flatten(1)
    if quantize_input:
        rows = use(quantize)(rows, format="mxfp8")
    inner = use(grouped_linear)(rows, weight=output_a, groups=groups, out=out)
    if quantize_input:
        inner = use(quantize)(inner, format="mxfp8")
    return use(linear)(inner, weight=output_b, out=out)


def _inputs(draw: Draw) -> dict[str, Any]:
    width = draw.sizes["N"] * draw.sizes["D"]
    return {
        "attended": draw.normal("T", "N", "D", dtype="f32"),
        "positions": draw.integers(0, 40, "T"),
        "table": draw_table(draw, 40, 32),
        "output_a": fp8_weight(draw, 64, width // 2),
        "output_b": fp8_weight(draw, "H", 64),
    }


@project_output.cases
def _cases() -> Iterator[Case]:
    settings: dict[str, Any] = {
        "N": 4,
        "D": 64,
        "H": 96,
        "groups": 2,
        "quantize_input": True,
        "out": "bf16",
        "make": _inputs,
    }
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, required=True, **settings)
    yield Case("unquantized_f32", T=5, dtype="f32", **dict(settings, quantize_input=False, out="f32"))
    yield ErrorCase(
        "positions", T=2, stretch=("positions", "T"), raises=ShapeError, match="positions has T=3", **settings
    )
