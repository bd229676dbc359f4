"""What the parts of a cycle with drafts take: verifying, the draft layers, and the draws behind them one by one.

    python benchmarks/draft_loop.py [--accelerator A] [--sequences 64] [--repeats 20] [--json FILE]

The layer slice (eight layers of the released model, random weights) with the whole draft module. A draw is the Markov
correction, the confidence and the choice of one draft; five of them follow each other. The share of a cycle is given
for the slice, and estimated for the whole model, whose 40 layers take five times what the slice's eight take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slice import open_slice

from deepinfer_core.backend.device import make_timer
from deepinfer_core.config.speculation import DraftSettings
from deepinfer_core.engine import step_measurement
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.runtime.batch import int32_row
from deepinfer_core.runtime.drafter import DUMMY_SLOT, Drafter
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.runtime.model import BoundModel

_LAYERS_OF_THE_MODEL = 40
_LAYERS_OF_THE_SLICE = 8
_NUM_DRAFTS = 5


def main() -> int:
    """Measure, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    settings = DraftSettings(
        num_drafts=_NUM_DRAFTS, is_coupled=True, is_adaptive=False, temperatures=(1.0,) * _NUM_DRAFTS
    )
    model = open_slice(args.accelerator, draft=settings)
    found = measure(model, args.sequences, args.repeats)
    for name, value in found.items():
        print(f"{name:<40}{value:.4f}")
    record = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "sequences": args.sequences,
        "found": found,
        "machine": describe_machine() | {"device": model.device.facts["name"]},
        "versions": describe_versions(model.report.backend),
        "binding": model.report.as_json(),
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(model: BoundModel, sequences: int, repeats: int) -> dict[str, float]:
    """Milliseconds of the parts, and shares of a cycle."""
    rows = sequences * (1 + _NUM_DRAFTS)
    caches = model.allocate(8, sequences)
    drafter, executor = Drafter(model, caches), Executor(model, caches, drafting=True)
    tokens = [5 + number % 1000 for number in range(rows)]
    verify = _milliseconds(model, step_measurement._verify(model, executor, tokens), repeats)  # noqa: SLF001
    whole = _milliseconds(model, step_measurement._draft(model, drafter, tokens[:sequences]), repeats)  # noqa: SLF001
    layers = _milliseconds(model, _layers(drafter, tokens[:sequences]), repeats)
    cycle, draws = verify + whole, whole - layers
    of_the_model = verify * _LAYERS_OF_THE_MODEL / _LAYERS_OF_THE_SLICE + whole
    return {
        f"verify {rows} rows, ms": verify,
        "draft pass, ms": whole,
        "draft layers, ms": layers,
        "five draws, ms": draws,
        "draws / cycle of the slice": draws / cycle,
        "draws / cycle of the model, estimated": draws / of_the_model,
        "draft pass / cycle of the model, estimated": whole / of_the_model,
    }


def _layers(drafter: Drafter, tokens: list[int]) -> Callable[[], Any]:
    """A pass like the whole one, filled the same way, without the draws."""
    model, module = drafter._model, drafter._module  # noqa: SLF001
    rings = drafter._caches.draft_window  # noqa: SLF001
    buffer = drafter._buffer(len(tokens))  # noqa: SLF001
    upload = model.device.upload
    ids, positions = upload(int32_row(tokens)), upload(int32_row([step_measurement._POSITION] * len(tokens)))  # noqa: SLF001
    rows = [step_measurement._SAMPLED_ROW] * len(tokens)  # noqa: SLF001
    drafter._fill(buffer, ids, positions, [DUMMY_SLOT] * len(tokens), rows)  # noqa: SLF001

    def work() -> None:
        module.forward(buffer.inputs, rings)

    work()
    return model.device.capture(work).replay if model.captures_graphs else work


def _milliseconds(model: BoundModel, work: Callable[[], Any], repeats: int) -> float:
    """Median of the device's time."""
    work()
    timer = make_timer(model.device)
    timer.mark()
    for _ in range(repeats):
        work()
        timer.mark()
    return 1e3 * statistics.median(timer.seconds())


if __name__ == "__main__":
    sys.exit(main())
