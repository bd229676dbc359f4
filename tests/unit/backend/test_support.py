"""The support matrix of a table."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.backend.support import support_matrix
from deepinfer_core.ops.declare import Dtypes, Op, Shape, Use, composite, op
from deepinfer_core.ops.limits import at_most
from deepinfer_core.ops.tolerance import Tolerance

Rows = Annotated[Tensor, Shape("T", "H"), Dtypes("f32")]


@op("test.double", tolerance=Tolerance(kind="exact"))
def double(x: Rows) -> Tensor:
    """Twice ``x``."""
    return x + x


@composite("test.quadruple", parts=(double,), tolerance=Tolerance(kind="exact"))
def quadruple(use: Use, x: Rows) -> Tensor:
    """Four times ``x``."""
    return use(double)(use(double)(x))


def outcomes(*native: Op[..., Tensor]) -> dict[str, str]:
    table = OpTable({op: (Implementation(run=op.reference),) for op in native})
    return {row.op: row.outcome for row in support_matrix(table, (double, quadruple))}


def test_empty_table_leaves_everything_to_the_references() -> None:
    assert outcomes() == {"test.double": "reference", "test.quadruple": "reference"}


def test_composite_with_a_native_part_is_decomposed() -> None:
    assert outcomes(double) == {"test.double": "native", "test.quadruple": "decomposed"}


def test_native_composite_says_nothing_about_its_parts() -> None:
    assert outcomes(quadruple) == {"test.double": "reference", "test.quadruple": "native"}


def test_row_holds_notes_and_limits_in_the_order_of_trying() -> None:
    fast = Implementation(run=double.reference, limits=(at_most("H", 8),), note="one pass", row_invariant=True)
    plain = Implementation(run=double.reference)

    (row,) = support_matrix(OpTable({double: (fast, plain)}), [double])

    assert row.implementations == ("one pass; H must be at most 8", "no limits")
    assert row.summary == "Twice ``x``."
    assert not row.row_invariant
