"""However an FP8 product is cut among programs, and whatever is decoded before, its result has the same bits."""

from __future__ import annotations

from tests.cuda.interpreted import interpreted_lines

_SAME_BITS = """
import torch
from dataclasses import replace
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.quantize.rounding import quantize_rows
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.ops.linear import dense_product, fp8_product
from deepinfer_cuda.ops.linear_tiles import ProductTile
from deepinfer_cuda.ops.linear_weight import pack_fp8

ROWS, OUT, WIDTH, GROUPS = 20, 96, 512, 2
TABLE = ProductTile(
    parts=3, spread=True, block_out=64, block_rows=32, block_in=128, num_warps=4, num_stages=3, band=1
)
INSIDE = {"spread": False}
PARKED = {"spread": False, "parked": True}
CHANGES = (
    INSIDE,
    {"rows_first": True, "chained": True},
    {"weights_first": True},
    {**INSIDE, "weights_first": True, "block_in": 64},
    {**PARKED, "weights_first": True},
    {**PARKED, "weights_first": True, "block_rows": 64, "chained": True},
)
torch.manual_seed(0)
data = torch.randn(OUT * GROUPS, WIDTH).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn)
scale = torch.randint(117, 122, (OUT * GROUPS // 32, WIDTH // 32), dtype=torch.uint8)
weight = pack_fp8(QuantTensor(data, scale, "fp8_block32"), GROUPS).payload
x = quantize_rows(torch.randn(ROWS, WIDTH * GROUPS, dtype=torch.bfloat16), FORMATS["mxfp8"])

def product(tile):
    result = torch.empty(ROWS, OUT * GROUPS, dtype=torch.bfloat16)
    fp8_product(x, weight, result, tile)
    return result

expected = product(TABLE)
assert expected.isfinite().all() and expected.any()
for change in CHANGES:
    assert torch.equal(product(replace(TABLE, **change)), expected), change
    print("same", change)

# Parts of channels that are no multiple of their unit: the last part reaches to the end.
dense, rows = torch.randn(96, 1088, dtype=torch.bfloat16), torch.randn(16, 1088, dtype=torch.bfloat16)
for change in ({}, {"block_in": 64}, INSIDE, PARKED):
    result = torch.empty(16, 96)
    dense_product(rows, dense, 1, result, replace(TABLE, **change))
    torch.testing.assert_close(result, rows.float() @ dense.float().T, rtol=1e-5, atol=1e-3)
    print("right", change)
"""


def test_cuts_do_not_change_bits() -> None:
    lines = interpreted_lines(_SAME_BITS)

    assert [line.split()[0] for line in lines] == ["same"] * 6 + ["right"] * 4
