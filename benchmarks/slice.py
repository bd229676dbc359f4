"""The layer slice on one accelerator: prefill and decode at released widths, op by op, against the floors.

    python benchmarks/slice.py [--prefill 4096 16384] [--decode 1x8192 64x131072] [--json FILE] [--plot FILE]

Every op of a step is also timed alone, on the inputs that it had in the step, and its floor counted from bytes and
FLOP (slice_costs.py). The step is timed whole: a prefill eagerly, a decode step as one recorded graph. Caches hold
random valid bytes: what a decode step costs does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "cuda")]
from measure import Ceilings, measure_ceilings, time_us  # noqa: E402 - beside this file
from slice_config import slice_config  # noqa: E402
from slice_costs import cost  # noqa: E402

from deepinfer_core.backend import registry  # noqa: E402
from deepinfer_core.backend.binding import BoundOp  # noqa: E402
from deepinfer_core.config.architecture import BLOCK_TOKENS  # noqa: E402
from deepinfer_core.config.numerics import variant  # noqa: E402
from deepinfer_core.config.speculation import DraftSettings  # noqa: E402
from deepinfer_core.runtime.batch import SequenceRows, step_inputs  # noqa: E402
from deepinfer_core.runtime.captured import CapturedDecode  # noqa: E402
from deepinfer_core.runtime.executor import Executor  # noqa: E402
from deepinfer_core.runtime.model import BoundModel, bind_model  # noqa: E402
from deepinfer_core.weights.assemble import assemble  # noqa: E402
from deepinfer_core.weights.check import read_config  # noqa: E402
from deepinfer_core.weights.dummy import DummyTensors  # noqa: E402

_NO_NAN = 0x77
"""Random bytes under this mask are finite numbers and moderate scales in every cache format."""
_REPEATS = 5
_LONGEST_KEPT = 16384
"""Tokens of the longest prompt whose ops are timed alone."""


def main() -> int:
    """Measure, print and write what is asked for."""
    args = _arguments()
    ceilings = measure_ceilings()
    print(f"copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, bf16 product {ceilings.flop_per_s / 1e12:.0f} TFLOP/s")
    model = open_slice(args.accelerator)
    print(model.report.table())
    steps: list[dict[str, Any]] = []
    for measure, sizes in _steps(args):
        try:
            steps.append(measure(model, ceilings, *sizes))
        except RuntimeError as error:  # what was measured before must not be lost, for example to a lack of memory
            print(f"{measure.__name__} {sizes}: FAILED {str(error)[:500]}", flush=True)
            continue
        print_step(steps[-1])
        if args.json:
            args.json.write_text(json.dumps(result(model, ceilings, steps), indent=1) + "\n", encoding="utf-8")
    if args.plot:
        from slice_plot import plot_roofline

        plot_roofline(steps, ceilings, model.device.facts["name"], args.plot)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    decode = [f"{count}x{context}" for context in (8192, 131072) for count in (1, 8, 64, 256)]
    parser.add_argument("--accelerator", default="cuda", help="backend (default cuda)")
    parser.add_argument("--prefill", type=int, nargs="*", default=[4096, 16384, 65536], help="tokens of one prompt")
    parser.add_argument("--decode", nargs="*", default=decode, help="sequences x context, e.g. 64x131072")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", type=Path, help="PNG file for the roofline")
    return parser.parse_args()


def _steps(args: argparse.Namespace) -> list[tuple[Callable[..., dict[str, Any]], tuple[int, ...]]]:
    decode = [(measure_decode, tuple(map(int, text.split("x")))) for text in args.decode]
    return [*decode, *((measure_prefill, (tokens,)) for tokens in args.prefill)]


def open_slice(accelerator: str, draft: DraftSettings | None = None) -> BoundModel:
    """The slice with random weights made on the device, bound; with the draft module if it is to make drafts."""
    backend = registry.load(registry.select(accelerator))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(
            json.dumps(slice_config(with_draft=draft is not None)), encoding="utf-8"
        )
        architecture, _ = read_config(Path(folder))
    size = architecture.engram.compressed_vocab_size if architecture.engram else 1
    return bind_model(
        architecture,
        assemble(architecture, DummyTensors(architecture, backend.device().torch_device)),
        tuple(token % size for token in range(architecture.vocab_size)),
        backend,
        numerics=variant("released"),
        max_positions=1 << 18,
        draft=draft,
    )


@dataclass
class Call:
    """Calls of one op with the same shapes in one step."""

    number: int = 0
    works: list[Any] = field(default_factory=list)
    bytes: float = 0.0
    flop: float = 0.0


class Recorder:
    """Lists the calls of bound ops, outermost only, while it is active.

    It keeps their inputs, so that they can be timed alone, unless it is told not to: those of long prompts do not fit.
    """

    def __init__(self, model: BoundModel, *, keeps: bool = True) -> None:
        self._model = model
        self._keeps = keeps
        self._depth = 0
        self.calls: dict[str, Call] = defaultdict(Call)

    def __enter__(self) -> Self:
        original = BoundOp.__call__
        self._original = original

        def recorded(bound: BoundOp, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                made = original(bound, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._add(bound, args, kwargs, made)
            return made

        BoundOp.__call__ = recorded  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        BoundOp.__call__ = self._original  # type: ignore[method-assign]

    def _add(self, bound: BoundOp, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        call = self.calls[bound.op.name]
        moved, flop = cost(bound.op.name, args, made, self._model.architecture)
        call.bytes += moved
        call.flop += flop
        call.number += 1
        if self._keeps:
            call.works.append(lambda: bound(*args, **kwargs))


def measure_decode(model: BoundModel, ceilings: Ceilings, count: int, context: int) -> dict[str, Any]:
    """One decode step of ``count`` sequences, each after ``context`` tokens."""
    blocks = -(-(context + 1) // BLOCK_TOKENS)
    executor = Executor(model, model.allocate(count * blocks, count))
    for pool in (executor.caches.block_pool, executor.caches.slot_pool):
        pool.random_(0, 256).bitwise_and_(_NO_NAN)
    rows = [_rows(number, context, context + 1, blocks) for number in range(count)]
    with torch.inference_mode(), Recorder(model) as recorder:
        inputs = step_inputs(rows, prefill=False, lookback=model.lookback, device=model.device)
        executor.logits(model.graph.forward(model.graph.begin(inputs, executor.caches)))
    ops = op_rows(recorder, ceilings)
    decode = CapturedDecode(model, executor.caches, torch.zeros(count + 1, dtype=torch.int32, device="cuda"))
    decode.run(rows)
    host, device = _host_and_device(decode, rows)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    step = {"step": f"decode {count} x {context}", "ops": ops, "us": device, "host_us": host, "peak_bytes": peak}
    return step | whole(ops, device, head=True)


def _host_and_device(decode: CapturedDecode, rows: list[SequenceRows], steps: int = 20) -> tuple[float, float]:
    """Microseconds that the host works on one step, and that one step takes when many follow each other."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    decode.run(rows)
    torch.cuda.synchronize()
    began = time.perf_counter()
    start.record()
    for _ in range(steps):
        decode.run(rows)
    end.record()
    host = (time.perf_counter() - began) * 1e6
    end.synchronize()
    return host / steps, start.elapsed_time(end) * 1e3 / steps


def measure_prefill(model: BoundModel, ceilings: Ceilings, tokens: int) -> dict[str, Any]:
    """One prompt, whole."""
    blocks = -(-tokens // BLOCK_TOKENS)
    executor = Executor(model, model.allocate(blocks, 1))
    rows = [_rows(0, 0, tokens, blocks)]
    with torch.inference_mode(), Recorder(model, keeps=tokens <= _LONGEST_KEPT) as recorder:
        executor.run(rows, prefill=True)
    ops = op_rows(recorder, ceilings)
    times = [_wall_us(lambda: executor.run(rows, prefill=True)) for _ in range(_REPEATS)]
    us = statistics.median(times)
    return {"step": f"prefill {tokens}", "ops": ops, "us": us, "tokens_per_s": tokens / us * 1e6} | whole(ops, us)


def _wall_us(work: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e6


def _rows(number: int, start: int, stop: int, blocks: int) -> SequenceRows:
    tokens = [5 + (place * 7919 + number * 104729) % 90000 for place in range(start, stop)]
    first = 1 + number * blocks
    return SequenceRows(
        token_ids=tokens,
        compressed_ids=tokens,
        start=start,
        ngram_history=[7, 11, 13] if start else [],
        state_slot=1 + number,
        blocks=list(range(first, first + blocks)),
        owner=number,
    )


def op_rows(recorder: Recorder, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Each op of the step alone: all its calls one after the other, in a graph."""
    rows: list[dict[str, Any]] = []
    for name, call in recorder.calls.items():
        row: dict[str, Any] = {"op": name, "calls": call.number, "bytes": call.bytes, "flop": call.flop}
        row["floor_us"] = max(call.bytes / ceilings.bytes_per_s, call.flop / ceilings.flop_per_s) * 1e6
        row["floor_us"] += 3.0 * call.number
        rows.append(row)
        if not call.works:
            continue
        try:
            with torch.inference_mode():
                row["us"] = time_us(call.works) * len(call.works)
            row["share"] = row["floor_us"] / row["us"]
        except RuntimeError as error:
            row["failed"] = str(error)[:200]
    recorder.calls.clear()
    return sorted(rows, key=lambda row: -row.get("us", 0.0))


def whole(ops: list[dict[str, Any]], us: float, *, head: bool = False) -> dict[str, Any]:
    """The step against the sum of its floors (the head is timed alone, not in the step)."""
    floor = sum(row["floor_us"] for row in ops if not (head and row["op"] == "embedding.vocabulary_logits"))
    return {"floor_us": floor, "share": floor / us}


def print_step(step: dict[str, Any]) -> None:
    """One step for people."""
    host = f", host {step['host_us']:.0f} us ({100 * step['host_us'] / step['us']:.1f} %)" if "host_us" in step else ""
    print(f"{step['step']}: {step['us']:.0f} us, {100 * step['share']:.1f} % of its floors{host}")
    for row in step["ops"]:
        found = f"{row['us']:10.1f} us {100 * row['share']:5.1f} %" if "us" in row else row.get("failed", "not timed")
        print(
            f"  {row['op']:<36} x{row['calls']:<3} {found}  {row['bytes'] / 1e6:9.1f} MB {row['flop'] / 1e9:9.1f} GFLOP"
        )


def result(model: BoundModel, ceilings: Ceilings, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures with what is needed to understand them."""
    import platform

    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {
        "what": "layer slice of the released model (8 layers, released widths, random weights, 1 device)",
        "config": slice_config()["text_config"],
        "machine": dict(model.device.facts),
        "versions": versions,
        "ceilings": {"copy_bytes_per_s": ceilings.bytes_per_s, "bf16_flop_per_s": ceilings.flop_per_s},
        "steps": steps,
        "binding": model.report.as_json(),
    }


if __name__ == "__main__":
    sys.exit(main())
