"""Tiles of rows: how many rows and columns one program of a row-wise kernel holds.

A tile depends on the width of a row alone, never on the number of rows: so a row's bits do not depend on its company.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

WIDEST = 16384
"""Channels of a row that one program holds in registers."""
_CHOICES = Path(__file__).parent / "tuning" / "rows.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTile:
    """What one program holds.

    Attributes:
        rows: Rows, a power of two.
        block: Columns, a power of two.
        num_warps: Warps of a program.
    """

    rows: int
    block: int
    num_warps: int

    def grid(self, num_rows: int) -> tuple[int]:
        """Programs for so many rows."""
        return (-(-num_rows // self.rows),)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below ``number`` (1 for 0)."""
    return 1 << max(number - 1, 0).bit_length()


def whole_rows(width: int, op: str = "") -> RowTile:
    """A tile of whole rows, padded to a power of two.

    Args:
        width: Channels of a row.
        op: Name under which the table may have tiles of the op's own.
    """
    return _tile(width, power_of_two(width), op)


def split_rows(width: int, op: str = "") -> tuple[RowTile, int]:
    """A tile of whole rows in two pieces: the largest power of two in the width (``block``), and what covers the rest.

    The released widths 5120 = 4096 + 1024 and 1280 = 1024 + 256 leave no lane idle; the second piece may be 0.
    """
    first = 1 << (max(width, 1).bit_length() - 1)
    rest = power_of_two(width - first) if width > first else 0
    return _tile(width, first, op), rest


def parts_of_rows(width: int, op: str = "") -> RowTile:
    """A tile of parts of rows, for kernels that treat each group of channels on its own."""
    divisor = width & -width
    return _tile(width, min(divisor, 1024) if divisor >= 128 else power_of_two(width), op)


def flat_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """A tensor as a matrix of its last axis with dense rows, and the distance of these in elements."""
    matrix = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    dense = matrix if matrix.stride(-1) == 1 or matrix.shape[-1] == 1 else matrix.contiguous()
    return dense, dense.stride(0)


def _tile(width: int, block: int, op: str) -> RowTile:
    tiles = choices()["tile"]
    usual = [tile for tile in tiles if "op" not in tile]
    own = [tile for tile in tiles if tile.get("op") == op]
    tile = next(t for t in (*own, *usual) if width <= t["max_width"] or t is usual[-1])
    return RowTile(rows=max(tile["elements"] // power_of_two(block), 1), block=block, num_warps=tile["num_warps"])


@cache
def choices() -> dict[str, Any]:
    """The table ``tuning/rows.toml``."""
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))
