"""Ways of cutting FP8 products that ``linear_tuning.py --variants`` times beside those of ``tuning/linear.toml``."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from linear import PROJECTIONS, Projection, random_rows, random_weight
from measure import LAUNCH_FLOOR_US, time_us
from torch import Tensor

from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.launch import Launch, recorded
from deepinfer_cuda.ops.linear import fp8_product
from deepinfer_cuda.ops.linear_tiles import ProductTile, product_tile
from deepinfer_cuda.ops.linear_weight import Fp8Weight, pack_fp8

ROWS = (64, 4096, 16384, 16, 1, 256)
"""What matters most first: when the seconds are over, the rest is not measured."""
BYTES_PER_S, FLOP_PER_S = 4.2e12, 785e12
"""Ceilings of an H200 (docs/cuda.md)."""
BEFORE = "before"
"""The cut of version 1, whose bits every other must have."""
PARTED = ("query_a_kv", "output_b")
"""Projections whose channels are divided into parts."""


def _cut(out: int, rows: int, depth: int, warps: int, stages: int, band: int = 1, **ways: bool) -> dict[str, Any]:
    """A whole cut but for the parts: ways that are not named are off."""
    off = dict.fromkeys(("parked", "rows_first", "weights_first", "chained"), False)
    sizes = {"block_out": out, "block_rows": rows, "block_in": depth, "num_warps": warps, "num_stages": stages}
    return {**sizes, "band": band, **off, **ways}


_FIRST = {"rows_first": True, "chained": True}
_LARGE = (128, 256, 64, 8, 4, 8)
_BEFORE: dict[tuple[int, bool], dict[str, Any]] = {
    (16, True): _cut(64, 16, 128, 4, 5),
    (16, False): _cut(128, 16, 128, 4, 4),
    (64, True): _cut(64, 64, 128, 4, 4),
    (64, False): _cut(128, 64, 128, 4, 4),
    (512, True): _cut(64, 128, 64, 4, 4, 4),
    (512, False): _cut(128, 128, 64, 8, 4, 4),
    (1 << 30, True): _cut(*_LARGE),
    (1 << 30, False): _cut(*_LARGE),
}
"""Most rows, and whether the weight has few channels: up to 16384 for 16 rows, else up to 4096."""
_16_ROWS: dict[str, dict[str, Any]] = {"chained": _cut(64, 16, 128, 4, 5, chained=True)}
_64_ROWS: dict[str, dict[str, Any]] = {
    "rows first, 64x64": _cut(64, 64, 128, 4, 4, rows_first=True),
    "rows first, chained, 64x64": _cut(64, 64, 128, 4, 4, **_FIRST),
    "rows first, chained, 64x64, 3 stages": _cut(64, 64, 128, 4, 3, **_FIRST),
    "rows first, chained, 128x64": _cut(128, 64, 128, 4, 4, **_FIRST),
    "rows first, chained, 256x64": _cut(256, 64, 128, 8, 4, **_FIRST),
    "rows first, chained, 64x32": _cut(64, 32, 128, 4, 4, 2, **_FIRST),
    "chained, 64x32": _cut(64, 32, 128, 4, 4, 2, chained=True),
}
_MANY_ROWS: dict[str, dict[str, Any]] = {
    "weights first": _cut(*_LARGE, weights_first=True),
    "weights first, chained": _cut(*_LARGE, weights_first=True, chained=True),
}
_MANY_ROWS_PARTED: dict[str, dict[str, Any]] = {
    "held": {**_cut(128, 128, 64, 8, 4, 8), "spread": False},
    "weights first, parked": {**_cut(*_LARGE, weights_first=True, parked=True), "spread": False},
    "weights first, parked, chained": {
        **_cut(*_LARGE, weights_first=True, parked=True, chained=True),
        "spread": False,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to cut one product of so many rows."""

    projection: Projection
    rows: int
    name: str
    tile: ProductTile

    @property
    def shape(self) -> tuple[str, int]:
        """What is compared with each other."""
        return self.projection.name, self.rows

    @property
    def floor_us(self) -> float:
        """As in ``measure.py``."""
        one = self.projection
        read = one.weights * (1 + 1 / 1024) + self.rows * one.groups * one.width * (1 + 1 / 32)
        written = self.rows * one.groups * one.out * 2
        seconds = max((read + written) / BYTES_PER_S, 2 * self.rows * one.weights / FLOP_PER_S)
        return seconds * 1e6 + LAUNCH_FLOOR_US


def variants(rows: list[int], names: list[str]) -> list[Variant]:
    """Everything to time, the cut of version 1 of a shape before its others."""
    chosen = [projection for projection in PROJECTIONS if projection.name in names]
    return [
        Variant(projection=projection, rows=count, name=name, tile=tile)
        for count in rows
        for projection in chosen
        for name, tile in _tiles(projection, count)
    ]


def _tiles(projection: Projection, rows: int) -> Iterator[tuple[str, ProductTile]]:
    table = product_tile("fp8", rows, projection.out, projection.width, projection.groups)
    few_channels = projection.out <= (16384 if rows <= 16 else 4096)
    before = next(cut for (most, few), cut in _BEFORE.items() if rows <= most and few == few_channels)
    cuts = {BEFORE: {**before, "spread": table.parts > 1}, "table": {}, **_others(projection, rows)}
    seen: set[ProductTile] = set()
    for name, cut in cuts.items():
        tile = replace(table, **cut)
        if tile not in seen:
            seen.add(tile)
            yield name, tile


def _others(projection: Projection, rows: int) -> dict[str, dict[str, Any]]:
    parted = projection.name in PARTED
    if rows <= 16:
        return _16_ROWS if parted or rows == 1 else {}
    if rows == 64:
        wide = projection.out > 4096
        return {name: cut for name, cut in _64_ROWS.items() if wide or cut["block_out"] == 64}
    return _MANY_ROWS | (_MANY_ROWS_PARTED if parted else {}) if rows >= 4096 else {}


def compile_all(chosen: list[Variant], processes: int) -> None:
    """Compile what the variants launch, in several processes; the cache on disk hands it to this one."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = list({_job_key(variant): variant for variant in chosen}.values())
        for variant, problem in zip(jobs, pool.map(_compile_one, jobs), strict=True):
            if problem:
                print(f"{variant.projection.name} {variant.name}: {problem}", flush=True)


def _job_key(variant: Variant) -> tuple[str, bool, ProductTile]:
    return variant.projection.name, variant.rows == 1, variant.tile


def _compile_one(variant: Variant) -> str:
    """Compile the kernels of a variant; the reason when they cannot be."""
    try:
        for launch in meta_launches(variant):
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            launch.kernel.warmup(*launch.arguments, grid=launch.grid, **options, **launch.constants)
    except Exception as error:  # noqa: BLE001 - reported by the parent
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def meta_launches(variant: Variant) -> list[Launch]:
    """What a variant launches, with tensors that have no storage."""
    one, meta = variant.projection, torch.device("meta")
    out, width = one.groups * one.out, one.groups * one.width
    x = QuantTensor(
        torch.empty((variant.rows, width), dtype=torch.float8_e4m3fn, device=meta),
        torch.empty((variant.rows, width // 32), dtype=torch.uint8, device=meta),
        "mxfp8",
    )
    weight = Fp8Weight(
        data=torch.empty((out // 2, 2 * one.width), dtype=torch.float8_e4m3fn, device=meta),
        factor=torch.empty((out // 32, one.width // 32), dtype=torch.float32, device=meta),
        groups=one.groups,
        num_out=one.out,
        width=one.width,
    )
    with recorded() as launches:
        result = torch.empty((variant.rows, out), dtype=torch.bfloat16, device=meta)
        fp8_product(x, weight, result, variant.tile)
    return launches


class Bench:
    """Times variants; weights of a projection and results of the cut ``before`` are kept."""

    def __init__(self) -> None:
        self._weights: dict[str, list[Fp8Weight]] = {}
        self._shape: tuple[str, int] | None = None
        self._x = self._expected = None

    def measure(self, variant: Variant) -> dict[str, Any]:
        """Microseconds, share of the floor, and whether the bits are those of the cut ``before``."""
        one, rows = variant.projection, variant.rows
        row: dict[str, Any] = {"projection": one.name, "rows": rows, "name": variant.name, "tile": asdict(variant.tile)}
        try:
            x, weights = self._inputs(variant)
            result = torch.empty(rows, one.groups * one.out, device="cuda", dtype=torch.bfloat16)
            fp8_product(x, weights[0], result, variant.tile)
            if variant.name == BEFORE:
                self._expected = result.clone()
            row["same_bits"] = self._same_bits(result)
            us = time_us([partial(fp8_product, x, weight, result, variant.tile) for weight in weights])
            row |= {"us": us, "share": variant.floor_us / us}
        except Exception as error:  # noqa: BLE001 - one variant that fails must not cost the GPU time of the others
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
        return row

    def _inputs(self, variant: Variant) -> tuple[QuantTensor, list[Fp8Weight]]:
        one = variant.projection
        if one.name not in self._weights:
            self._weights[one.name] = [pack_fp8(random_weight(one), one.groups).payload for _ in range(one.copies)]
        if self._shape != variant.shape:
            self._shape, self._expected = variant.shape, None
            self._x = random_rows(variant.rows, one.groups * one.width)
        return self._x, self._weights[one.name]

    def _same_bits(self, result: Tensor) -> bool | None:
        """None where the cut ``before`` failed."""
        if self._expected is None:
            return None
        return bool(self._expected.isfinite().all()) and torch.equal(
            result.view(torch.int16), self._expected.view(torch.int16)
        )


def time_variants(rows: list[int], names: list[str], output: Path | None, seconds: float, processes: int) -> int:
    """Print and store the figures; 1 if bits changed or a variant failed."""
    began = time.monotonic()
    chosen = variants(rows, names)
    compile_all(chosen, processes)
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    bench, found = Bench(), []
    for variant in chosen:
        if time.monotonic() - began > seconds:
            print(f"time is over: {len(chosen) - len(found)} of {len(chosen)} variants were not measured")
            break
        found.append(bench.measure(variant))
        print(_line(found[-1]), flush=True)
        if output:
            output.write_text(json.dumps({"seconds": time.monotonic() - began, "rows": found}, indent=1))
    return 0 if all(row.get("same_bits") and "failed" not in row for row in found) else 1


def _line(row: dict[str, Any]) -> str:
    begin = f"{row['projection']:<14} M={row['rows']:<6} {row['name']:<38}"
    if "failed" in row:
        return f"{begin} failed: {row['failed'][:120]}"
    return f"{begin} {row['us']:9.1f} us {row['share']:5.0%} {'same bits' if row['same_bits'] else 'BITS DIFFER'}"
