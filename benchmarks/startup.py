"""How long a user waits: start of the command, listing of backends, opening the tiny model.

    python benchmarks/startup.py [--json benchmarks/results/startup_cpu_202611.json]

Each figure is the best of several runs in fresh processes: noise of a shared machine only adds.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUNS = 5
COMMAND = str(Path(sys.executable).with_name("deepinfer"))
LIMITS_S = {"deepinfer --version": 0.3, "deepinfer backends": 0.5, "load tiny": 2.0}
"""The figures to stay under, in seconds."""

_LOAD = """
import time
import torch  # the library's own import is not part of loading a model
import deepinfer_core.engine.opening as opening
start = time.perf_counter()
opening.open_model("tiny", accelerator="cpu")
print(time.perf_counter() - start)
"""


def main() -> int:
    """Measure, print, and say with the exit code whether every figure is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    seconds = {
        "deepinfer --version": best(lambda: wall([COMMAND, "--version"])),
        "deepinfer backends": best(lambda: wall([COMMAND, "backends"])),
        "load tiny": best(lambda: float(output([sys.executable, "-c", _LOAD]))),
    }
    for name, value in seconds.items():
        print(f"{name:<22} {value:6.3f} s   (below {LIMITS_S[name]} s)")
    if args.json:
        args.json.write_text(json.dumps(_record(seconds), indent=1) + "\n")
    return 0 if all(value < LIMITS_S[name] for name, value in seconds.items()) else 1


def best(measure: Any) -> float:
    """The smallest of several measurements."""
    return min(measure() for _ in range(RUNS))


def wall(command: list[str]) -> float:
    """Seconds from start to end of a process."""
    start = time.perf_counter()
    output(command)
    return time.perf_counter() - start


def output(command: list[str]) -> str:
    """What a process prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _record(seconds: dict[str, float]) -> dict[str, Any]:
    import torch

    import deepinfer_core

    return {
        "what": "seconds until the command answers and until the tiny model is open (checked, loaded, bound)",
        "method": f"best of {RUNS} fresh processes",
        "limits_s": LIMITS_S,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        "versions": {
            "deepinfer_core": deepinfer_core.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
