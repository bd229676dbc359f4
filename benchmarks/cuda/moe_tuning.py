"""Time of each stage of the expert layer, and of both products with other tiles: figures for ``tuning/moe.toml``.

    python benchmarks/cuda/moe_tuning.py [--rows 1 64 256 2048 8192] [--stages-only]

Needs a GPU. Each line is one tile; the fastest of a block belongs into the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import time_us
from moe import ARITHMETIC, EXPERTS, HIDDEN, random_maps, random_step

from deepinfer_cuda.ops.expert_tuning import ExpertTile, ProductTile, choose_tile
from deepinfer_cuda.ops.experts import (
    ExpertMaps,
    InnerRow,
    SortedRows,
    combine,
    first_products,
    second_products,
    sort_rows,
)

_BLOCK_M = {1: (16,), 64: (16,), 256: (16,), 2048: (32, 64), 8192: (64, 128)}
_FEW_ROWS = ((64, 4, 3), (64, 4, 4), (64, 4, 6), (128, 8, 4), (128, 4, 4))
_MANY_ROWS = ((64, 4, 3), (128, 4, 3), (128, 8, 3), (128, 8, 4), (256, 8, 3))
_INNER_ROW = InnerRow(**{name: ARITHMETIC[name] for name in ("limit", "quantize_inner", "round_inner")})


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=list(_BLOCK_M), help="rows of the step")
    parser.add_argument("--stages-only", action="store_true", help="only the tiles of the table")
    args = parser.parse_args()
    maps = _maps()
    for rows in args.rows:
        step = random_step(rows)
        tile = choose_tile(rows * step[1].shape[1], EXPERTS)
        print(
            f"T={rows} {tile}",
            *(f"{name} {_time(work):.1f} us" for name, work in _stages(step, maps, tile)),
            sep="\n  ",
        )
        for candidate in () if args.stages_only else _candidates(rows):
            found = [f"{name} {_time(work):.1f} us" for name, work in _stages(step, maps, candidate)[1:3]]
            print("  ", candidate.block_m, candidate.group, candidate.gate_up, candidate.down, *found, flush=True)
    return 0


def _maps() -> ExpertMaps:
    (gate_up, down), (shared_gate_up, shared_down) = random_maps("mxfp4", EXPERTS), random_maps("fp8_block32", 1)
    return ExpertMaps(
        gate_up=gate_up.payload,
        down=down.payload,
        shared_gate_up=shared_gate_up.payload,
        shared_down=shared_down.payload,
    )


def _stages(step: tuple[Any, ...], maps: ExpertMaps, tile: ExpertTile) -> list[tuple[str, Callable[[], Any]]]:
    """The four launches, each on the results of the one before."""
    rows: SortedRows = sort_rows(*step, maps, tile)
    inner = first_products(rows, maps, _INNER_ROW)
    count = len(step[1])
    products = torch.empty((rows.num_pairs + count, HIDDEN), dtype=torch.bfloat16, device="cuda")
    routed, shared = products.split((rows.num_pairs, count))
    result = torch.empty_like(shared)
    slots = routed.unflatten(0, tuple(step[1].shape))
    return [
        ("sort", lambda: sort_rows(*step, maps, tile)),
        ("gate_up", lambda: first_products(rows, maps, _INNER_ROW)),
        ("down", lambda: second_products(rows, maps, inner, products)),
        ("combine", lambda: combine(slots, shared, rows.ids, result)),
    ]


def _candidates(rows: int) -> Iterator[ExpertTile]:
    tiles = _FEW_ROWS if rows <= 256 else _MANY_ROWS
    groups = (1,) if rows <= 256 else (8,)
    for block_m, group, (block_n, num_warps, num_stages) in product(_BLOCK_M.get(rows, (64,)), groups, tiles):
        gate_up = ProductTile(block_n=block_n, num_warps=num_warps, num_stages=num_stages)
        down = ProductTile(block_n=2 * block_n, num_warps=num_warps, num_stages=num_stages)
        yield ExpertTile(block_m=block_m, group=group, gate_up=gate_up, down=down)


def _time(work: Callable[[], Any]) -> float:
    """Microseconds; infinite for a tile that does not fit."""
    try:
        return time_us([work])
    except Exception as error:  # noqa: BLE001 - one tile that fails must not cost the GPU time of the others
        print(f"   failed: {error}"[:200])
        return float("inf")


if __name__ == "__main__":
    sys.exit(main())
