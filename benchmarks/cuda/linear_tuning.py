"""Time of the products with other tiles: figures for ``tuning/linear.toml``.

    python benchmarks/cuda/linear_tuning.py [--projection NAME ...] [--rows M ...]
    python benchmarks/cuda/linear_tuning.py --variants [--output FILE.json] [--seconds 110]

Needs a GPU. A line is one tile; the first for a projection and a number of rows is the table's. ``--variants`` times
chosen ways (``linear_variants.py``) in which more than the tile differs, all compiled first in several processes, and
compares each bit by bit with version 1's. When the seconds are over, what is left is not measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from linear import HIDDEN, PROJECTIONS, VOCABULARY, Projection, random_rows, random_weight
from linear_variants import ROWS, time_variants
from measure import Work, time_us

from deepinfer_cuda.ops.linear import dense_product, fp8_product
from deepinfer_cuda.ops.linear_tiles import ProductTile, product_tile
from deepinfer_cuda.ops.linear_weight import pack_fp8

Cut = tuple[int, int, int, int, int]
"""``block_out``, ``block_rows``, ``block_in``, ``num_warps``, ``num_stages``."""
FP8_CUTS: dict[int, tuple[Cut, ...]] = {
    1: ((64, 16, 128, 4, 4), (64, 16, 128, 4, 6), (128, 16, 128, 4, 3), (128, 16, 128, 4, 4), (128, 16, 128, 8, 4)),
    16: ((64, 16, 128, 4, 5), (128, 16, 128, 4, 4)),
    64: ((64, 64, 128, 4, 4), (128, 64, 128, 4, 3), (128, 64, 128, 8, 4), (128, 64, 64, 4, 4), (256, 64, 128, 8, 3)),
    256: ((64, 128, 64, 4, 4), (128, 128, 64, 4, 4), (128, 128, 64, 8, 4), (128, 256, 64, 8, 4)),
    4096: (
        (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 256, 128, 8, 2),
        (256, 128, 64, 8, 3),
        (256, 128, 64, 8, 4),
    ),
}
HEAD_CUTS: dict[int, tuple[Cut, ...]] = {
    1: ((64, 16, 128, 4, 4), (128, 16, 128, 4, 3), (128, 16, 64, 4, 5), (128, 16, 128, 8, 5)),
    64: ((128, 64, 64, 4, 4), (128, 64, 128, 8, 3), (256, 64, 64, 8, 4), (256, 64, 64, 8, 5)),
    256: ((128, 128, 64, 8, 4), (128, 256, 64, 8, 4), (256, 128, 64, 8, 4)),
}


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [projection.name for projection in PROJECTIONS]
    parser.add_argument("--projection", nargs="+", help="projections to time (without --variants the head too)")
    parser.add_argument("--rows", nargs="+", type=int, help="rows of x")
    parser.add_argument("--variants", action="store_true", help="time the chosen variants")
    parser.add_argument("--output", type=Path, help="file for the figures of the variants")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile variants")
    args = parser.parse_args()
    if args.variants:
        chosen = args.projection or [name for name in names if name != "query_b_index"]
        return time_variants(args.rows or list(ROWS), chosen, args.output, args.seconds, args.processes)
    args.projection, args.rows = args.projection or [*names, "head"], args.rows or list(FP8_CUTS)
    for projection in PROJECTIONS:
        if projection.name in args.projection:
            _time_projection(projection, args.rows)
    if "head" in args.projection:
        _time_head(args.rows)
    return 0


def _time_projection(projection: Projection, rows: list[int]) -> None:
    weights = [pack_fp8(random_weight(projection), projection.groups).payload for _ in range(projection.copies)]
    for count in rows:
        x = random_rows(count, projection.groups * projection.width)
        result = torch.empty(count, projection.groups * projection.out, device="cuda", dtype=torch.bfloat16)
        chosen = product_tile("fp8", count, projection.out, projection.width, projection.groups)
        for tile in (chosen, *_candidates(chosen, FP8_CUTS.get(count, ()))):
            works = [partial(fp8_product, x, weight, result, tile) for weight in weights]
            _print_time(projection.name, count, tile, works)


def _time_head(rows: list[int]) -> None:
    head = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
    for count in rows:
        x = torch.randn(count, HIDDEN, device="cuda", dtype=torch.bfloat16)
        result = torch.empty(count, VOCABULARY, device="cuda")
        chosen = product_tile("dense", count, VOCABULARY, HIDDEN, 1)
        for tile in (chosen, *_candidates(chosen, HEAD_CUTS.get(count, ()))):
            _print_time("head", count, tile, [partial(dense_product, x, head, 1, result, tile)])


def _candidates(chosen: ProductTile, cuts: tuple[Cut, ...]) -> Iterator[ProductTile]:
    """Other cuts with the table's parts; then the table's cut with other parts, where it has parts of its own."""
    names = ("block_out", "block_rows", "block_in", "num_warps", "num_stages")
    for cut in cuts:
        tile = replace(chosen, **dict(zip(names, cut, strict=True)))
        if tile != chosen and (tile.parts == 1 or tile.spread or tile.block_out * tile.block_rows <= 128 * 128):
            yield tile
    if chosen.spread:
        for parts in (1, 2, 3, 4, 6):
            if parts != chosen.parts:
                yield replace(chosen, parts=parts, spread=parts > 1)
    elif chosen.parts > 1:
        yield replace(chosen, parts=1, block_rows=256)


def _print_time(name: str, rows: int, tile: ProductTile, works: list[Work]) -> None:
    try:
        figure = f"{time_us(works):9.1f} us"
    except Exception as error:  # noqa: BLE001 - a tile that does not fit must not cost the GPU time of the others
        figure = f"failed: {str(error)[:80]}"
    cut = f"{tile.block_out}x{tile.block_rows}x{tile.block_in} warps {tile.num_warps} stages {tile.num_stages}"
    print(f"{name:<14} M={rows:<6} {cut:<36} parts {tile.parts} band {tile.band} {figure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
