"""Time of the expert layer with other tiles, and of its stages: figures for ``tuning/moe.toml``.

    python benchmarks/cuda/moe_tuning.py [--rows 1 64 ...] [--variants NAME ...] [--out FOLDER] [--seconds 150]
    python benchmarks/cuda/moe_tuning.py --profile NAME --rows 4096     # one layer, for ncu

Needs a GPU. All kernels are compiled first, in several processes. The tile of 16 rows is compared with the op's
definition, every variant bit by bit with that tile. A line is one variant, a column a number of rows. When the seconds
are over, what is left is not measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import measure_ceilings, time_us
from moe import ARITHMETIC, EXPERTS, HIDDEN, INNER, SLOTS, error_against_reference, random_maps, random_step

from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.launch import Launch, recorded
from deepinfer_cuda.ops import experts
from deepinfer_cuda.ops.expert_packing import empty_weights
from deepinfer_cuda.ops.expert_tuning import ExpertTile, ProductTile
from deepinfer_cuda.ops.experts import (
    ExpertMaps,
    InnerRow,
    first_products,
    run_expert_layer,
    second_products,
    sort_rows,
)
from deepinfer_cuda.quantised import empty_quantised

Step = tuple[QuantTensor, torch.Tensor, torch.Tensor]
_INNER_ROW = InnerRow(**{name: ARITHMETIC[name] for name in ("limit", "quantize_inner", "round_inner")})
_CHECKED_ROWS = {"few": 64, "many": 2048}
_COMPILED_ROWS = {"few": (1, 64, 256, 2048), "many": (4096,)}
"""Together these specialise kernels in every way in which the sizes of ``--rows`` do."""
_TOLERANCE = 5e-3
_FEW_ROWS = 1024
"""Up to so many rows the variants named ``few`` are measured, from there on those named ``many``."""


def _tile(
    first_m: int, tails: tuple[int, ...], group: int, gate_up: tuple[int, ...], down: tuple[int, ...] | None = None
) -> ExpertTile:
    """``gate_up`` and ``down``: block_n, num_warps, num_stages, parts; without ``down`` twice the channels."""
    down = down or (2 * gate_up[0], *gate_up[1:])
    names = ("block_n", "num_warps", "num_stages", "parts")
    products = [ProductTile(**dict(zip(names, sizes, strict=True))) for sizes in (gate_up, down)]
    return ExpertTile(first_m=first_m, tails=tails, group=group, gate_up=products[0], down=products[1])


_TAILS = (0, 16, 32, 64)
VARIANTS: dict[str, dict[str, ExpertTile]] = {
    "many": {
        "v1": _tile(64, (0,), 8, (128, 8, 3, 1)),
        "tails": _tile(64, _TAILS, 8, (128, 8, 3, 1)),
        "tails_halves": _tile(64, _TAILS, 8, (128, 8, 3, 2)),
        "halves": _tile(64, (0,), 8, (128, 8, 3, 2)),
        "tails_4_stages": _tile(64, _TAILS, 8, (128, 8, 4, 1)),
        "one_tail": _tile(64, (0, 64), 8, (128, 8, 3, 1)),
        "rows_128": _tile(128, (0,), 8, (128, 8, 3, 2)),
        "tails_group_24": _tile(64, _TAILS, 24, (128, 8, 3, 1)),
        "tails_4_warps": _tile(64, _TAILS, 16, (64, 4, 2, 1)),
        "tails_quarters": _tile(64, _TAILS, 8, (128, 8, 3, 4)),
    },
    "few": {
        "v1": _tile(16, (0,), 1, (64, 4, 3, 1)),
        "4_stages": _tile(16, (0,), 1, (64, 4, 4, 1)),
        "6_stages": _tile(16, (0,), 1, (64, 4, 6, 1)),
        "halves_4_stages": _tile(16, (0,), 1, (64, 4, 4, 2)),
        "quarters_4_stages": _tile(16, (0,), 1, (64, 4, 4, 4)),
        "narrow_down": _tile(16, (0,), 1, (64, 4, 6, 1), (64, 4, 6, 1)),
    },
}


def main() -> int:
    """Print the figures; 1 when the numbers of a variant are not what they must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[4096, 8192, 1, 64, 256, 16384, 2048])
    parser.add_argument("--variants", nargs="+", help="names to measure beside the first of each list")
    parser.add_argument("--out", type=Path, help="folder for moe_tuning.json")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--profile", metavar="NAME", help="run one layer with this variant and stop")
    args = parser.parse_args()
    chosen = {kind: _chosen(kind, args.variants) for kind in VARIANTS}
    if args.profile:
        return _profile(VARIANTS[_kind(args.rows[0])][args.profile], args.rows[0])
    deadline = time.monotonic() + args.seconds
    failed = _compile(chosen, args.processes)
    print(f"compiled; {deadline - time.monotonic():.0f} s left", flush=True)
    bench = _Bench(deadline)
    error = max(error_against_reference(rows) for rows in (1, 64))
    print(f"relative error against the definition: {error:.1e}", flush=True)
    found = {
        f"{kind}/{name}": bench.check(kind, tile) | {"tile": str(tile)}
        for kind, tiles in chosen.items()
        for name, tile in tiles.items()
        if (kind, name) not in failed
    }
    for rows in args.rows:
        for name, tile in chosen[_kind(rows)].items():
            if row := found.get(f"{_kind(rows)}/{name}"):
                row[str(rows)] = bench.measure(rows, tile)
                print(f"{rows:6d} {name:20s}", row[str(rows)], flush=True)
    _report(found, args.rows, bench.ceilings.flop_per_s, args.out)
    return 1 if error > _TOLERANCE or any(row["changed"] != 0 for row in found.values()) else 0


def _kind(rows: int) -> str:
    return "few" if rows <= _FEW_ROWS else "many"


def _chosen(kind: str, names: list[str] | None) -> dict[str, ExpertTile]:
    return {name: tile for name, tile in VARIANTS[kind].items() if name == "v1" or names is None or name in names}


@contextmanager
def _using(tile: ExpertTile) -> Iterator[None]:
    """The expert layer with another tile than that of the table."""
    with patch.object(experts, "choose_tile", lambda *_: tile):
        yield


class _Bench:
    """The layer at the released sizes."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.routed, self.shared = random_maps("mxfp4", EXPERTS), [random_maps("fp8_block32", 1) for _ in range(4)]
        self.ceilings = measure_ceilings()
        self.steps: dict[int, list[Step]] = {}
        self.expected: dict[str, tuple[Step, torch.Tensor]] = {}

    def check(self, kind: str, tile: ExpertTile) -> dict[str, Any]:
        """Numbers whose bits are not those of tiles of 16 rows; experts have from none to hundreds of the rows."""
        try:
            if kind not in self.expected:
                step = _skewed_step(_CHECKED_ROWS[kind])
                self.expected[kind] = step, self._layer(step, VARIANTS["few"]["v1"])
            step, expected = self.expected[kind]
            result = self._layer(step, tile)
            changed = int((result.view(torch.int16) != expected.view(torch.int16)).sum())
            return {"changed": changed if expected.isfinite().all() else -1}
        except Exception as error:  # noqa: BLE001 - one variant that fails must not cost the GPU time of the others
            return {"changed": -1, "failed": f"{type(error).__name__}: {error}"[:300]}

    def _layer(self, step: Step, tile: ExpertTile) -> torch.Tensor:
        with _using(tile):
            return run_expert_layer(*step, *self.routed, *self.shared[0], **ARITHMETIC)

    def measure(self, rows: int, tile: ExpertTile) -> dict[str, float]:
        """Microseconds of the whole layer and of its products; nothing when time is up or the tile does not fit."""
        if time.monotonic() > self.deadline:
            return {}
        steps = self.steps.setdefault(rows, [random_step(rows) for _ in range(4 if rows == 1 else 1)])
        pairs = list(zip(steps, self.shared, strict=False))
        try:
            with _using(tile):
                layer = time_us([partial(run_expert_layer, *s, *self.routed, *own, **ARITHMETIC) for s, own in pairs])
            stages = {"sort": 0.0, "gate_up": 0.0, "down": 0.0}
            if rows <= 8192:
                stages = {name: time_us(works) for name, works in self._stages(steps, tile).items()}
        except Exception as error:  # noqa: BLE001 - as above
            print("   failed:", str(error)[:200])
            return {}
        return {name: round(us, 1) for name, us in {"layer": layer, **stages}.items()}

    def _stages(self, steps: list[Step], tile: ExpertTile) -> dict[str, list[Callable[[], Any]]]:
        """Sort and products, each on the results of the one before; results for as many channels as the layer makes."""
        works: dict[str, list[Callable[[], Any]]] = {"sort": [], "gate_up": [], "down": []}
        for step, own in zip(steps, self.shared, strict=False):
            maps = _maps(self.routed, own)
            rows = sort_rows(*step, maps, tile)
            inner = first_products(rows, maps, _INNER_ROW)
            channels = maps.room(SLOTS).channels_at_once(len(rows.ids))
            products = torch.empty((rows.num_pairs + len(rows.ids), channels), dtype=torch.bfloat16, device="cuda")
            works["sort"].append(partial(sort_rows, *step, maps, tile))
            works["gate_up"].append(partial(first_products, rows, maps, _INNER_ROW))
            works["down"].append(partial(_all_channels, rows, maps, inner, products))
        return works


def _skewed_step(rows: int) -> Step:
    """A step in which some experts have many rows and others few."""
    x, _, weights = random_step(rows)
    scores = torch.rand(rows, EXPERTS, device="cuda") + torch.rand(EXPERTS, device="cuda") ** 8
    return x, scores.topk(SLOTS, -1).indices.to(torch.int32), weights


def _all_channels(*made: Any) -> None:
    """The second products of all channels, one part after the other into the same room."""
    for first in range(0, HIDDEN, made[-1].shape[1]):
        second_products(*made, first)


def _maps(routed: tuple[Packed, Packed], shared: tuple[Packed, Packed]) -> ExpertMaps:
    return ExpertMaps(
        gate_up=routed[0].payload,
        down=routed[1].payload,
        shared_gate_up=shared[0].payload,
        shared_down=shared[1].payload,
    )


def _report(found: dict[str, dict[str, Any]], rows: list[int], flop_per_s: float, folder: Path | None) -> None:
    """A line for each variant: microseconds of the layer."""
    print(f"\nbf16 {flop_per_s / 1e12:.0f} TFLOP/s; microseconds of the layer")
    print(f"{'variant':28s}", *(f"{count:>9d}" for count in rows), "  changed")
    for name, row in found.items():
        times = (row.get(str(count), {}).get("layer", "") for count in rows)
        print(f"{name:28s}", *(f"{time!s:>9s}" for time in times), f"  {row['changed']}", row.get("failed", ""))
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        content = {"flop_per_s": flop_per_s, "variants": found}
        (folder / "moe_tuning.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def _profile(tile: ExpertTile, rows: int) -> int:
    step, routed, own = random_step(rows), random_maps("mxfp4", EXPERTS), random_maps("fp8_block32", 1)
    with _using(tile):
        run_expert_layer(*step, *routed, *own, **ARITHMETIC)
    torch.cuda.synchronize()
    return 0


def _compile(chosen: dict[str, dict[str, ExpertTile]], processes: int) -> set[tuple[str, str]]:
    """Compile what the variants launch; the cache on disk hands it to this process. Returns those that failed."""
    kernels = ("gate_up", "down", "sort")
    jobs = [(kind, name, kernel) for kernel in kernels for kind, tiles in chosen.items() for name in tiles]
    failed: set[tuple[str, str]] = set()
    with ProcessPoolExecutor(min(processes, len(jobs)), multiprocessing.get_context("spawn")) as pool:
        for (kind, name, kernel), problem in zip(jobs, pool.map(_compile_one, jobs), strict=True):
            if problem:
                print(f"{kind}/{name} {kernel}: {problem}", flush=True)
                failed.add((kind, name))
    return failed


def _compile_one(job: tuple[str, str, str]) -> str:
    """Compile one kernel of a variant for every way in which it is launched; the reason when it cannot be."""
    kind, name, kernel = job
    try:
        done = set()
        for rows in _COMPILED_ROWS[kind]:
            with _using(VARIANTS[kind][name]), recorded() as launches:
                _meta_layer(rows)
            for launch in launches:
                key = (str(launch.constants), tuple(_specialised(value) for value in launch.arguments))
                if kernel in launch.kernel.__name__ and key not in done:
                    done.add(key)
                    _warm(launch)
    except Exception as error:  # noqa: BLE001 - reported by the parent
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _specialised(value: Any) -> Any:
    """What of an argument a compiled kernel depends on."""
    return (value == 1, value % 16 == 0) if isinstance(value, int) else type(value)


def _warm(launch: Launch) -> None:
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    launch.kernel.warmup(*launch.arguments, grid=launch.grid, **options, **launch.constants)


def _meta_layer(rows: int) -> None:
    """The layer on tensors without storage."""
    meta = torch.device("meta")
    maps = [
        Packed(empty_weights(format, count, matrices, *shape, meta), ())
        for format, count in (("mxfp4", EXPERTS), ("fp8_block32", 1))
        for matrices, shape in ((2, (INNER, HIDDEN)), (1, (HIDDEN, INNER)))
    ]
    ids = torch.empty((rows, SLOTS), dtype=torch.int32, device=meta)
    weights = torch.empty((rows, SLOTS), dtype=torch.float32, device=meta)
    run_expert_layer(empty_quantised((rows, HIDDEN), "mxfp8", meta), ids, weights, *maps, **ARITHMETIC)


if __name__ == "__main__":
    sys.exit(main())
