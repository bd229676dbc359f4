"""Agreement with the golden files: largest error of each kind of tensor, file by file.

    python benchmarks/golden.py [--json benchmarks/results/golden_cpu_202611.json]

Two runs of each file: float64 on the CPU with the roundings of the golden run, and float32 on the backend asked for
(and, where it rounds a near-tie the other way, with the roundings of the float64 run). What counts as agreement is what
``tests/golden_agreement`` demands. Exits with 1 when a tensor is outside its tolerance.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the rule of agreement is the tests'

from tests.golden_agreement.agreement import TOLERANCE, compare_with, disagreeing  # noqa: E402
from tests.golden_agreement.golden_files import FILES, GoldenFile  # noqa: E402
from tests.golden_agreement.rounding import NOISE  # noqa: E402
from tests.golden_agreement.workshop import Workshop  # noqa: E402

if TYPE_CHECKING:
    from deepinfer_core.engine.diff import Comparison, TraceDifference

INTEGERS = "integers"
"""Column of everything that is not a number: choices that differ, added up."""


def main() -> int:
    """Run every file and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--accelerator", default="cpu", help="backend of the float32 runs (default cpu)")
    args = parser.parse_args()
    workshop, start = Workshop(accelerator=args.accelerator), time.monotonic()
    results = {file.id: measure(workshop, file) for file in FILES}
    seconds = time.monotonic() - start
    for arithmetic, title in (("f64", "float64, roundings of the golden run"), ("f32", "float32, as it is")):
        print(
            f"{title}: largest error in units of the tensor's largest entry", *table(results, arithmetic), "", sep="\n"
        )
    num_tensors = sum(result["num_tensors"] for result in results.values())
    num_outside = sum(
        len(result[arithmetic]["outside"]) for result in results.values() for arithmetic in ("f64", "f32")
    )
    flipped = [name for name, result in results.items() if result["f32"]["num_flipped"]]
    print(f"{num_tensors} tensors in {len(FILES)} files, {num_outside} outside tolerance; {seconds:.0f} s")
    print(f"float32 rounds near-ties the other way in {len(flipped)} files: {', '.join(flipped) or 'none'}")
    if args.json:
        args.json.write_text(json.dumps(record(workshop, results, num_tensors, num_outside, seconds), indent=1) + "\n")
    return 1 if num_outside else 0


def measure(workshop: Workshop, file: GoldenFile) -> dict[str, Any]:
    """Both runs of one file."""
    exact = workshop.exact(file)
    found64 = compare_with(file, exact.tensors)
    found32 = compare_with(file, workshop.traced(file, "f32"))
    outside, num_flipped = names(disagreeing(found32)), 0
    if outside:
        replayed = workshop.replayed(file, exact)
        num_flipped = replayed.roundings.num_taken_over
        explained = replayed.roundings.num_wrong == 0 and num_flipped > 0
        outside = names(disagreeing(compare_with(file, replayed.tensors))) if explained else outside
    print(f"{file.id} done", file=sys.stderr)
    return {
        "num_positions": len(file.token_ids),
        "num_tensors": len(found64.comparisons),
        "num_nudges": len(file.nudges),
        "f64": {"errors": errors(found64), "outside": names(disagreeing(found64))},
        "f32": {"errors": errors(found32), "outside": outside, "num_flipped": num_flipped},
    }


def names(comparisons: Sequence[Comparison]) -> list[str]:
    """Of the tensors."""
    return [c.name for c in comparisons]


def errors(found: TraceDifference) -> dict[str, float]:
    """Largest error by kind of tensor, over all layers, to three digits."""
    largest: dict[str, float] = {INTEGERS: 0}
    for c in found.comparisons:
        if c.is_choice:
            largest[INTEGERS] += c.error + c.num_ties
        else:
            kind = c.name.partition(".")[0]
            largest[kind] = max(largest.get(kind, 0.0), c.error)
    return {kind: float(f"{error:.2e}") for kind, error in largest.items()}


def table(results: dict[str, dict[str, Any]], arithmetic: str) -> list[str]:
    """One line for each kind of tensor, one column for each file, numbered."""
    kinds = list(dict.fromkeys(kind for r in results.values() for kind in r[arithmetic]["errors"]))
    rows = [f"{'':<24}" + "".join(f"{number:>8}" for number, _ in enumerate(results, 1)) + f"{'all':>9}"]
    for kind in kinds:
        values = [r[arithmetic]["errors"].get(kind) for r in results.values()]
        most = max(value for value in values if value is not None)
        rows.append(f"{kind:<24}" + "".join(f"{_cell(kind, value):>8}" for value in values) + f"{_cell(kind, most):>9}")
    keys = [f"{number} {name}" for number, name in enumerate(results, 1)]
    return [*rows, f"files: {', '.join(keys)}"]


def _cell(kind: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if kind == INTEGERS else f"{value:.0e}"


def record(
    workshop: Workshop, results: dict[str, Any], num_tensors: int, num_outside: int, seconds: float
) -> dict[str, Any]:
    """What the result file holds."""
    import torch

    import deepinfer_core

    reports = {model: workshop.opened(model, "f32").model.report for model in ("tiny", "mini_b")}
    return {
        "what": "agreement with the golden files (nemo_automodel 0.7.0, one-shot, without caches)",
        "comparison": f"every number to {TOLERANCE:g} of its tensor's largest entry (drafts: as golden_files.py says), "
        f"every integer; float32 as it is, or with the roundings of the float64 run where it leaves them undecided "
        f"(noise {NOISE:g} of a row's largest entry in either run)",
        "accelerator": "cpu",
        "num_tensors": num_tensors,
        "num_outside_tolerance": num_outside,
        "seconds": round(seconds, 1),
        "machine": {
            "processor": reports["tiny"].device,
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
        "versions": {
            "deepinfer_core": deepinfer_core.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "binding": {model: report.counts for model, report in reports.items()},
        "files": results,
    }


if __name__ == "__main__":
    sys.exit(main())
