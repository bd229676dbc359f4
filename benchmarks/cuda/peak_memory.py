"""Peak memory of the layer slice: weights, caches, declared workspace, and what a prefill and a decode take beyond.

    python benchmarks/cuda/peak_memory.py [--rows 8192] [--sequences 256] [--context 8192] [--json FILE]

Needs a GPU. The workspace is what ``BoundModel.workspace`` declares before any cache is allocated. ``allocated`` counts
tensors, ``reserved`` what torch's allocator has taken from the driver, gaps and recorded steps included. Exit code 1
when either of them is beyond weights, caches and declared workspace by more than ``--limit-gib``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from slice import open_slice  # noqa: E402 - beside this folder

from deepinfer_core.config.architecture import BLOCK_TOKENS  # noqa: E402
from deepinfer_core.runtime.batch import SequenceRows  # noqa: E402
from deepinfer_core.runtime.executor import Executor  # noqa: E402
from deepinfer_core.runtime.workspace import EngineLimits  # noqa: E402

_GIB = 2**30
_NO_NAN = 0x77
"""Random bytes under this mask are finite numbers and moderate scales in every cache format."""


def main() -> int:
    """Measure, print, judge."""
    args = _arguments()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device; this benchmark needs one", file=sys.stderr)
        return 2
    model = open_slice("cuda")
    _settle()
    weights = torch.cuda.memory_allocated()
    limits = EngineLimits(
        max_num_batched_tokens=args.rows,
        max_num_seqs=args.sequences,
        max_model_len=max(args.rows, args.context + 1),
    )
    workspace = model.workspace(limits)
    blocks = max(_blocks(args.rows), args.sequences * _blocks(args.context + 1))
    executor = Executor(model, model.allocate(blocks, args.sequences))
    pools = executor.caches.block_pool, executor.caches.slot_pool
    caches = sum(pool.nbytes for pool in pools)
    for pool in pools:
        pool.random_(0, 256).bitwise_and_(_NO_NAN)
    known = weights + caches + workspace.total_bytes
    print(f"weights {_gib(weights)}, caches {_gib(caches)}")
    print(f"declared workspace {workspace}")
    steps = [_step(executor, kind, known, args) for kind in ("prefill", "decode")]
    figures = {
        "what": "peak memory of the layer slice (8 layers, released widths, random weights, 1 device)",
        "machine": dict(model.device.facts),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "limits": {"rows": args.rows, "sequences": args.sequences, "context": args.context},
        "weights_bytes": weights,
        "caches_bytes": caches,
        "workspace_bytes": workspace.total_bytes,
        "prefill_workspace_bytes": workspace.prefill.total_bytes,
        "decode_workspace_bytes": workspace.decode.total_bytes,
        "unstated_ops": list(workspace.unstated),
        "steps": steps,
    }
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    beyond = max(step[name] for step in steps for name in ("allocated_beyond_bytes", "reserved_beyond_bytes"))
    verdict = "within" if beyond <= args.limit_gib * _GIB else "MORE THAN"
    print(f"beyond weights, caches and declared workspace: {_gib(beyond)}, {verdict} {args.limit_gib} GiB")
    return 0 if verdict == "within" else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192, help="tokens of the prompt (default 8192)")
    parser.add_argument("--sequences", type=int, default=256, help="sequences that decode (default 256)")
    parser.add_argument("--context", type=int, default=8192, help="tokens before the decode step (default 8192)")
    parser.add_argument("--limit-gib", type=float, default=2.0, help="what may be beyond (default 2)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def _step(executor: Executor, kind: str, known: int, args: argparse.Namespace) -> dict[str, Any]:
    """One step of a kind, twice: what is compiled or recorded the first time is there the second time."""
    if kind == "prefill":
        rows = [_rows(0, 0, args.rows)]
    else:
        rows = [_rows(number, args.context, args.context + 1) for number in range(args.sequences)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        for _ in range(2):
            hidden, step = executor.run(rows, prefill=kind == "prefill")
            del step
            executor.logits(hidden[-len(rows) :])
            del hidden
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(
        f"{kind}: {_gib(allocated)} allocated, {_gib(reserved)} reserved; "
        f"beyond {_gib(allocated - known)} and {_gib(reserved - known)}"
    )
    return {
        "step": kind,
        "allocated_peak_bytes": allocated,
        "reserved_peak_bytes": reserved,
        "allocated_beyond_bytes": allocated - known,
        "reserved_beyond_bytes": reserved - known,
    }


def _rows(number: int, start: int, stop: int) -> SequenceRows:
    tokens = [5 + (place * 7919 + number * 104729) % 90000 for place in range(start, stop)]
    first = 1 + number * _blocks(stop)
    return SequenceRows(
        token_ids=tokens,
        compressed_ids=tokens,
        start=start,
        ngram_history=[7, 11, 13] if start else [],
        state_slot=1 + number,
        blocks=list(range(first, first + _blocks(stop))),
    )


def _settle() -> None:
    """Give back what packing the weights left over."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.3f} GiB"


if __name__ == "__main__":
    sys.exit(main())
