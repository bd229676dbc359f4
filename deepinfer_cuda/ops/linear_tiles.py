"""Tiles of the matrix products, from ``tuning/linear.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from deepinfer_core.errors import InternalError

Kind = Literal["fp8", "dense", "float32"]
_CHOICES = Path(__file__).parent.parent / "tuning" / "linear.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTile:
    """How a product is cut among programs.

    Attributes:
        parts: Parts of the channels, summed in order; they depend on the weight alone.
        spread: Each part has programs of its own, and their sums are added by a second kernel.
        block_out: Rows of the weight of a tile.
        block_rows: Rows of x of a tile.
        block_in: Channels of one round.
        num_warps: Warps of a program.
        num_stages: Rounds that are loaded ahead.
        band: Row tiles that share weights while these are in the cache.
        parked: Where parts are not spread, the sum of the parts so far waits in memory and not in registers; with dense
            weights, also those decoded before.
        rows_first: MXFP8 rows are decoded by a kernel before, however few.
        weights_first: An FP8 weight is decoded by a kernel before.
        chained: A kernel starts ahead of the end of the one before it and waits there.
    """

    parts: int
    spread: bool
    block_out: int
    block_rows: int
    block_in: int
    num_warps: int
    num_stages: int
    band: int
    parked: bool = False
    rows_first: bool = False
    weights_first: bool = False
    chained: bool = False

    def grid(self, num_rows: int, num_out: int, groups: int) -> tuple[int, int, int]:
        """Programs of a product."""
        tiles = -(-num_rows // self.block_rows) * -(-num_out // self.block_out)
        return tiles, groups, self.parts if self.spread else 1

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time parameters of the kernels, and how they are started."""
        return {
            "SPLITS": self.parts,
            "SPREAD": self.spread,
            "BLOCK_OUT": self.block_out,
            "BLOCK_ROWS": self.block_rows,
            "BLOCK_IN": self.block_in,
            "BAND": self.band,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            **self.chain,
        }

    @property
    def chain(self) -> dict[str, bool]:
        """What a kernel that waits for the one before it is told; ``launch_pdl`` is Triton's word for its start."""
        return {"CHAINED": True, "launch_pdl": True} if self.chained else {"CHAINED": False}


@cache
def product_tile(kind: Kind, num_rows: int, num_out: int, width: int, groups: int) -> ProductTile:
    """The tile of a product.

    Args:
        kind: What the weight's elements are.
        num_rows: Rows of x.
        num_out: Rows of the weight of one group.
        width: Channels of one group.
        groups: Independent products side by side.
    """
    choices = _choices()
    parts = num_parts(num_out * groups, width)
    spread = parts > 1 and num_rows <= choices["spread_rows"][kind]
    table = f"{kind}_parts_inside" if parts > 1 and not spread and kind != "float32" else kind
    for entry in choices[table]:
        if num_rows <= entry.get("max_rows", num_rows) and num_out <= entry.get("max_out", num_out):
            cut = {name: value for name, value in entry.items() if not name.startswith("max_")}
            return ProductTile(parts=parts, spread=spread, **cut)
    raise InternalError(f"tuning/linear.toml: no entry of {table} serves {num_rows} rows and {num_out} channels")


@cache
def num_parts(total_out: int, width: int) -> int:
    """Parts of the channels: from the weight's shape alone (rows of all groups, channels of one)."""
    choices = _choices()
    wanted = next((e["parts"] for e in choices["parts"] if total_out <= e["max_out"]), 1)
    return max(min(wanted, width // choices["least_channels"]), 1)


@cache
def _choices() -> dict[str, Any]:
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))
