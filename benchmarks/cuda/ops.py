"""Time of every CUDA op at the released sizes against its floor and against torch.

    python benchmarks/cuda/ops.py [--only FAMILY ...] [--match TEXT] [--json FILE]

Floor = max(bytes / measured copy bandwidth, FLOP / measured bf16 rate) + 3 us. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import Ceilings, measure_ceilings, run

FAMILIES = ("linear", "moe", "attention", "indexer", "hyper_connection", "rows", "sampling")


def main() -> int:
    """Measure, print a line for each, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=FAMILIES, choices=FAMILIES, help="families to measure")
    parser.add_argument("--match", default="", help="only measurements whose 'group name shape' contains this")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    ceilings = measure_ceilings()
    print(f"copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, bf16 product {ceilings.flop_per_s / 1e12:.0f} TFLOP/s")
    rows = [row for family in args.only for row in family_rows(family, args.match, ceilings)]
    if args.json:
        args.json.write_text(json.dumps(result(ceilings, rows), indent=1) + "\n", encoding="utf-8")
    return 0


def family_rows(family: str, match: str, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Every measurement of one family, printed as it is made."""
    if not (Path(__file__).parent / f"{family}.py").exists():
        return []
    rows: list[dict[str, Any]] = []
    for measurement in importlib.import_module(family).measurements():
        if match not in f"{measurement.group} {measurement.name} {measurement.shape}":
            continue
        rows.append(run(measurement, ceilings))
        print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    what = f"{row['group']:<18} {row['name']:<18} {row['shape']:<34}"
    error = f" err {row['error']:.1e}{'' if row['error_ok'] else ' BAD'}" if "error" in row else ""
    if "failed" in row:
        return f"{what} FAILED {row['failed']}{error}"
    peer = f" x{row['times_peer']:.2f} peer" if "times_peer" in row else ""
    mark = "" if row["share"] >= row["target"] else " <"
    share = f"{100 * row['share']:5.1f} % of floor (target {100 * row['target']:.0f})"
    return f"{what} {row['us']:9.1f} us {share}{mark}{peer}{error}"


def result(ceilings: Ceilings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures with what is needed to understand them."""
    import triton

    return {
        "what": "time of CUDA ops at released sizes, median of graph replays, weights rotated out of L2",
        "machine": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]},
        "ceilings": {"copy_bytes_per_s": ceilings.bytes_per_s, "bf16_flop_per_s": ceilings.flop_per_s},
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
