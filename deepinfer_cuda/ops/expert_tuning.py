"""Tile sizes of the grouped expert products, from ``tuning/moe.toml``.

They change how work is cut, never the order in which a row is summed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent.parent / "tuning" / "moe.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTile:
    """How one product is cut and run.

    Attributes:
        block_n: Result channels of a program.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline.
        parts: Products of a step of 128 channels (1, 2 or 4): the weights of one are decoded beside another.
    """

    block_n: int
    num_warps: int
    num_stages: int
    parts: int

    def block_for(self, rows: int) -> int:
        """``block_n``, or the largest part of it that divides a matrix of whole tiles of 64 rows."""
        whole, block = -(-rows // 64) * 64, self.block_n
        while whole % block:
            block //= 2
        return block


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTile:
    """How both products of a step are cut.

    Attributes:
        first_m: Rows of a tile without its tail.
        tails: Rows of tails that a tile may have, from 0 up: products of their own with the same decoded weights.
        group: Tiles that use a block of weights one after the other.
        gate_up: First maps; ``block_n`` counts channels of gate and of up each.
        down: Second maps.
    """

    first_m: int
    tails: tuple[int, ...]
    group: int
    gate_up: ProductTile
    down: ProductTile

    @property
    def block_m(self) -> int:
        """Rows of the largest tile."""
        return self.first_m + self.tails[-1]

    @property
    def unit_m(self) -> int:
        """What rows of a tile are a multiple of."""
        return 16 if len(self.tails) > 1 else self.first_m


def choose_tile(num_pairs: int, num_experts: int) -> ExpertTile:
    """The entry for so many pairs of row and slot over so many experts."""
    entries = _entries()
    return next((tile for most, tile in entries if num_pairs <= most * num_experts), entries[-1][1])


@cache
def _entries() -> tuple[tuple[int, ExpertTile], ...]:
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple((entry["max_average"], _tile(entry)) for entry in content["tile"])


def _tile(entry: dict[str, Any]) -> ExpertTile:
    products = {name: ProductTile(**entry[name]) for name in ("gate_up", "down")}
    return ExpertTile(first_m=entry["first_m"], tails=tuple(entry["tails"]), group=entry["group"], **products)
