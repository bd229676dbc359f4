"""How close a decode step of released layer widths comes to what the memory allows.

    python benchmarks/cpu_released_width.py [--layers 2] [--experts 8] [--weight-copies packed] [--json FILE]

A dummy model has the widths of the released one, few layers, few experts and a small vocabulary. A step must read the
weights that its token goes through, in the form in which they are kept: with ``packed`` the codes of the checkpoint.
The same run measures how fast a large tensor is summed by as many threads as the step has, before and after it, and
the share is the time that reading would take over the time that the step took. The threads' processor time is given
beside it: on a machine with other work it changes less than the clock.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import torch
from cpu_tiny import Sequences, best, machine, versions

from deepinfer_core.engine.model_config import RELEASED, find_config
from deepinfer_core.engine.opening import open_model
from deepinfer_core.weights.names import expected_tensors

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture

TARGET_SHARE = 0.6
"""Of the measured bandwidth; what the project promises."""
_SUMMED_NUMBERS = 1 << 28
_LARGE_NUMBERS = 1 << 20
"""A map of more numbers is kept in bf16 (``reference.compiled_products``), a smaller one in float32."""
_PACKED_BYTES = {"I8": 17 / 32, "F8_E4M3": 33 / 32, "BF16": 2.0}
"""Of one number, by the element type of the checkpoint: a code and its part of a scale."""
_ONE_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def main() -> int:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="layers (default 2)")
    parser.add_argument("--experts", type=int, default=8, help="routed experts of a layer (default 8)")
    parser.add_argument("--vocabulary", type=int, default=1280, help="tokens (default 1280)")
    parser.add_argument("--context", type=int, default=32, help="tokens before (default 32)")
    parser.add_argument("--steps", type=int, default=5, help="decode steps of each measurement (default 5)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements, the best of which counts (default 3)")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (default: its own choice)")
    parser.add_argument("--weight-copies", default="auto", help="what is kept of the weights (default auto)")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    result = measure(args)
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every figure, with what is needed to understand it."""
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps(few_layers(args.layers, args.experts, args.vocabulary))
        Path(folder, "config.json").write_text(config, encoding="utf-8")
        model = open_model(
            folder, accelerator="cpu", load_format="dummy", max_model_len=4096, weight_copies=args.weight_copies
        ).model
    sequences = Sequences(model, 1, args.context + args.steps)
    sequences.prefill(args.context)

    def run() -> None:
        for position in range(args.context, args.context + args.steps):
            sequences.decode(position)

    run()
    before = bandwidth_bytes_per_s()
    step_s, processor_s = (best(run, args.repeats, clock) / args.steps for clock in (perf_counter, process_time))
    bandwidth = max(before, bandwidth_bytes_per_s())
    num_bytes = step_bytes(model.architecture, args.weight_copies)
    return {
        "what": "one decode step of a dummy model of released widths, one sequence",
        "method": f"best of {args.repeats} times {args.steps} steps; bandwidth: best sum of a 1 GiB tensor",
        "machine": machine(model),
        "versions": versions(),
        "layers": args.layers,
        "experts": args.experts,
        "weight_copies": args.weight_copies,
        "step_ms": round(step_s * 1e3, 2),
        "step_processor_ms": round(processor_s * 1e3, 2),
        "bytes_of_a_step": num_bytes,
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 2),
        "share_of_bandwidth": round(num_bytes / bandwidth / step_s, 3),
        "target_share": TARGET_SHARE,
        "binding": model.report.as_json(),
    }


def few_layers(layers: int, experts: int, vocabulary: int) -> dict[str, Any]:
    """The released config with few layers, the last of which compresses and selects; no memory, no draft module."""
    config = json.loads((find_config(RELEASED).folder / "config.json").read_text(encoding="utf-8"))
    config["image_token_id"] = vocabulary - 1
    config["text_config"].update(
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        n_routed_experts=experts,
        compress_ratios=[0] * (layers - 1) + [1],
        kv_source_layer_ids=[layers - 1],
        index_source_layer_ids=[layers - 1],
        candidate_source_layer_id=layers - 1,
        engram_layer_ids=[],
        engram_num_embeddings=[],
        dspark_target_layer_ids=[],
        dspark_noise_token_id=vocabulary - 2,
        num_nextn_predict_layers=0,
    )
    return config


def step_bytes(architecture: ModelArchitecture, weight_copies: str) -> int:
    """Bytes of the weights that one token goes through, as they are kept; the embedding is one row and not counted."""
    chosen = architecture.experts.experts_per_token
    total = 0
    for tensor in expected_tensors(architecture):
        expert = _ONE_EXPERT.search(tensor.name)
        is_map = len(tensor.shape) == 2 and tensor.scale_of is None and tensor.name.startswith(("layers.", "head."))
        if is_map and (expert is None or int(expert[1]) < chosen):
            numbers = tensor.shape[0] * tensor.shape[1] * (2 if tensor.dtypes[0] == "I8" else 1)
            wide = 2 if numbers > _LARGE_NUMBERS else 4
            total += round(numbers * (_PACKED_BYTES[tensor.dtypes[0]] if weight_copies == "packed" else wide))
    return total


def bandwidth_bytes_per_s() -> float:
    """Bytes of a large tensor that a second's summing reads."""
    numbers = torch.ones(_SUMMED_NUMBERS)

    def read() -> None:
        numbers.sum()

    return numbers.nbytes / best(read, 5)


if __name__ == "__main__":
    sys.exit(main())
