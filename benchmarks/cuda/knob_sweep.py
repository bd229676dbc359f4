"""Time of the index, residual, row-wise and attention kernels with other settings of their tables in ``tuning/``.

    python benchmarks/cuda/knob_sweep.py [--only CASE ...] [--seconds 150] [--output FILE]
    python benchmarks/cuda/knob_sweep.py --list

Needs a GPU. The first setting of a case is the table's: its launches are timed one by one as well, and every other
setting's results are compared with its results bit by bit. Kernels are compiled in several processes while others are
measured. Cases come by importance; when the seconds are over, what is left is not measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from knob_cases import CASES, Case, Setting
from measure import Work, measure_ceilings, time_us
from row_inputs import tensors_of

from deepinfer_cuda.launch import Launch, launch, recorded

_PROCESSES = 12


@dataclass(frozen=True, slots=True)
class Compilation:
    """A launch without its tensors, for another process.

    Attributes:
        module: Where the kernel is.
        name: The kernel.
        arguments: Numbers as they are; of a tensor only its type, by name.
        constants: Compile-time parameters.
        num_warps: See ``Launch``.
        num_stages: See ``Launch``.
    """

    module: str
    name: str
    arguments: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    num_stages: int

    @staticmethod
    def of(started: Launch) -> Compilation:
        """What has to be compiled for a launch; of numbers the compiler knows whether they are 1 or divided by 16."""
        return Compilation(
            module=started.kernel.__module__,
            name=started.kernel.__name__,
            arguments=tuple(map(_kind, started.arguments)),
            constants=tuple(sorted(started.constants.items())),
            num_warps=started.num_warps,
            num_stages=started.num_stages,
        )


@dataclass(slots=True, kw_only=True)
class Sweep:
    """A run of the script.

    Attributes:
        until: When to stop, as ``time.perf_counter`` counts.
        pool: Processes that compile.
        asked: What has been given to them.
        rows: Figures.
    """

    until: float
    pool: ProcessPoolExecutor
    asked: dict[Compilation, Future[str]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def over(self) -> bool:
        """Whether the seconds are over."""
        return time.perf_counter() > self.until

    def compile(self, settings: tuple[Setting, ...], work: Work) -> None:
        """Have all kernels of a case compiled; nothing waits."""
        for setting in settings:
            for started in _launches(setting, work):
                wanted = Compilation.of(started)
                if wanted not in self.asked:
                    self.asked[wanted] = self.pool.submit(_warm, wanted)

    def wait(self, setting: Setting, work: Work) -> str:
        """Until the kernels of a setting are there; returns what went wrong, if anything did."""
        messages = [self.asked[Compilation.of(started)].result() for started in _launches(setting, work)]
        return next((message for message in messages if message), "")


def main() -> int:
    """Print a line for each setting, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=150.0, help="stop after so many")
    parser.add_argument("--output", type=Path, help="file for the result")
    parser.add_argument("--list", action="store_true", help="print the cases and start nothing")
    args = parser.parse_args()
    cases = [case for case in CASES if any(word in case.name for word in args.only)]
    if args.list:
        for case in cases:
            print(f"{case.name:<32} {', '.join(setting.name for setting in case.settings)}")
        return 0
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    processes = max(min(_PROCESSES, (os.cpu_count() or 2) - 1), 1)
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        sweep = Sweep(until=began + args.seconds, pool=pool)
        _sweep(sweep, cases)
        pool.shutdown(wait=False, cancel_futures=True)
    if args.output:
        args.output.write_text(json.dumps(_result(sweep, began), indent=1) + "\n", encoding="utf-8")
    return 0


def _sweep(sweep: Sweep, cases: list[Case]) -> None:
    """Make inputs and ask for all compilations, then measure."""
    made: dict[str, list[Work]] = {}
    for case in cases:
        if sweep.over():
            return
        try:
            made[case.name] = case.make()
            sweep.compile(case.settings, made[case.name][0])
        except Exception as error:  # noqa: BLE001 - a case that fails must not cost the GPU time of the others
            print(f"{case.name:<32} inputs FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
    for case in cases:
        works = made.pop(case.name, [])
        if works and not sweep.over():
            _measure_case(sweep, case, works)
        del works
        torch.cuda.empty_cache()


def _measure_case(sweep: Sweep, case: Case, works: list[Work]) -> None:
    expected: list[torch.Tensor] = []
    for setting in case.settings:
        if sweep.over():
            print(f"{case.name:<32} cut off", flush=True)
            return
        row: dict[str, Any] = {"case": case.name, "setting": setting.name, "floor_us": case.floor_us}
        try:
            row |= {"not_compiled_ahead": message} if (message := sweep.wait(setting, works[0])) else {}
            with setting.applied():
                found = _bits(works[0], setting)
                if not expected:
                    expected = found
                row["differing_bytes"] = sum(_differing(a, b) for a, b in zip(found, expected, strict=True))
                row["us"] = time_us(works)
            if setting is case.settings[0]:
                row["launches"] = _launch_times(setting, works)
        except Exception as error:  # noqa: BLE001 - as above
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        sweep.rows.append(row)
        print(_line(row), flush=True)


def _launch_times(setting: Setting, works: list[Work]) -> list[dict[str, Any]]:
    """Time of each launch on its own, on the same rotated inputs."""
    columns = zip(*(_launches(setting, work) for work in works), strict=True)
    return [
        {"kernel": column[0].kernel.__name__, "us": time_us([partial(_start, started) for started in column])}
        for column in columns
    ]


def _launches(setting: Setting, work: Work) -> list[Launch]:
    with setting.applied(), recorded() as launches:
        work()
    return launches


def _start(started: Launch) -> None:
    options = {"num_warps": started.num_warps, "num_stages": started.num_stages}
    launch(started.kernel, started.grid, *started.arguments, **options, **started.constants)


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"tensor {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, int) and not isinstance(value, bool) and value != 1:
        wide = 1 << 40 if abs(value) >= 1 << 31 else 0
        return wide + (32 if value % 16 == 0 else 33)
    return value


def _warm(wanted: Compilation) -> str:
    """Compile in this process, which leaves the code in Triton's cache; returns what went wrong, if anything did."""
    try:
        kernel = getattr(importlib.import_module(wanted.module), wanted.name)
        options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages}
        arguments = (
            torch.empty(1, dtype=getattr(torch, a.removeprefix("tensor ")), device="meta") if isinstance(a, str) else a
            for a in wanted.arguments
        )
        kernel.warmup(*arguments, grid=(1,), **options, **dict(wanted.constants))
    except Exception as error:  # noqa: BLE001 - reported with the setting
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _bits(work: Work, setting: Setting) -> list[torch.Tensor]:
    """What a call returns, as bytes; of one that returns nothing, what it was given and wrote to."""
    result = work()
    written = tensors_of(result) if result is not None else _tensor_arguments(_launches(setting, work))
    return [tensor.contiguous().view(torch.uint8).clone() for tensor in written]


def _tensor_arguments(launches: list[Launch]) -> list[torch.Tensor]:
    return [a for started in launches for a in started.arguments if isinstance(a, torch.Tensor)]


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a != b).sum())


def _line(row: dict[str, Any]) -> str:
    what = f"{row['case']:<32} {row['setting']:<44}"
    if "failed" in row:
        return f"{what} FAILED {row['failed']}"
    bits = "" if row["differing_bytes"] == 0 else f"  BITS DIFFER: {row['differing_bytes']} bytes"
    parts = ", ".join(f"{each['kernel'].removesuffix('_kernel')} {each['us']:.1f}" for each in row.get("launches", []))
    return (
        f"{what} {row['us']:9.1f} us {100 * row['floor_us'] / row['us']:6.1f} %{bits}{'  = ' if parts else ''}{parts}"
    )


def _result(sweep: Sweep, began: float) -> dict[str, Any]:
    import triton

    ceilings = measure_ceilings()
    return {
        "what": "time of CUDA kernels with other settings, median of graph replays, inputs rotated out of L2",
        "machine": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]},
        "ceilings": {"copy_bytes_per_s": ceilings.bytes_per_s, "bf16_flop_per_s": ceilings.flop_per_s},
        "seconds": time.perf_counter() - began,
        "compilations": len(sweep.asked),
        "rows": sweep.rows,
    }


if __name__ == "__main__":
    sys.exit(main())
