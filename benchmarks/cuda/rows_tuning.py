"""Time of row-wise ops with other tiles: figures for ``tuning/rows.toml``.

    python benchmarks/cuda/rows_tuning.py [--match TEXT ...]

Needs a GPU. Each line is one op at 8192 rows with one tile; every other tile costs a compilation.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import rows
from measure import time_us

from deepinfer_cuda import row_tiles

_ELEMENTS = (1024, 2048, 4096, 8192)
_WARPS = (2, 4, 8)
_USUAL = ("rms_norm 512", f"norm_quantize {rows.HIDDEN}", "quantize mxfp4", "rotate_store window", "load main")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", nargs="+", default=_USUAL, help="names of measurements")
    args = parser.parse_args()
    for measurement in rows.measurements():
        if measurement.name not in args.match or measurement.shape != "rows=8192":
            continue
        print(measurement.name)
        for elements, num_warps in product(_ELEMENTS, _WARPS):
            choices = ((row_tiles.WIDEST, elements, num_warps),)
            row_tiles.tile_choices = cache(lambda choices=choices: choices)  # in place of the table, in this process
            print(f"  {elements} numbers, {num_warps} warps: {time_us(measurement.make()):.1f} us", flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
