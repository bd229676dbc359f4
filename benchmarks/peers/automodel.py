"""The tiny model in NeMo AutoModel, eager, on a CPU: rates of the workload, as JSON.

    PEER_PYTHON benchmarks/peers/automodel.py [--threads N] [--repeats N] [--dtypes bfloat16 float32] > FILE

Runs in an environment of its own (README.md beside this file), not in ours. The peer keeps no cache between steps: each
token computes its whole sequence anew. It is timed in both of its arithmetics; the faster one counts, figure by figure.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast
from workload import CHECKPOINT, MEASUREMENTS, REPEATS, Measurement, contexts

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("bfloat16", "float32")
EAGER = BackendConfig(
    attn="eager",
    linear="torch",
    rms_norm="torch_fp32",
    rope_fusion=False,
    experts="torch",
    dispatcher="torch",
    gate_precision="float32",
)
"""What the package offers on a machine without an accelerator."""

_NOT_TEXT = ("vision.", "aligner.", "image_")
_PACKAGES = ("nemo-automodel", "torch", "transformers")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (default: its own choice)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"timings of each figure (default {REPEATS})")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="arithmetics (default both)")
    args = parser.parse_args()
    torch.compiler.set_stance("force_eager")
    if args.threads:
        torch.set_num_threads(args.threads)
    figures = {dtype: measure_all(dtype, args.repeats) for dtype in args.dtypes}
    json.dump(describe(figures), sys.stdout, indent=1)
    print()
    return 0


def describe(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The result: of each figure the faster arithmetic, and what it ran on."""
    fastest = {m.name: max(figures, key=lambda dtype: figures[dtype][m.name]["tokens_per_s"]) for m in MEASUREMENTS}
    return {
        "what": "NeMo AutoModel, eager, no cache; the faster arithmetic of each figure",
        "versions": {"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in _PACKAGES}},
        "threads": torch.get_num_threads(),
        "figures": {name: {"dtype": dtype, **figures[dtype][name]} for name, dtype in fastest.items()},
        "tokens_per_s_by_dtype": {
            dtype: {name: figure["tokens_per_s"] for name, figure in by_name.items()}
            for dtype, by_name in figures.items()
        },
    }


def measure_all(dtype: str, repeats: int) -> dict[str, Any]:
    """Every figure in one arithmetic."""
    model = load(dtype)
    with torch.inference_mode():
        return {measurement.name: measure(model, measurement, repeats) for measurement in MEASUREMENTS}


def measure(model: DeepseekV41ForCausalLM, measurement: Measurement, repeats: int) -> dict[str, Any]:
    """Rate of one figure, and the tokens that were generated."""
    print(f"{measurement.name} ...", file=sys.stderr)
    given = torch.tensor(contexts(measurement))
    start = generate(model, given, 1)
    timed: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        ended = generate(model, start, measurement.num_tokens) if measurement.num_tokens else generate(model, given, 1)
        timed.append(time.perf_counter() - began)
    return {
        "tokens_per_s": round(measurement.num_timed_tokens / min(timed), 3),
        "seconds": [round(seconds, 4) for seconds in timed],
        "token_ids": ended[:, given.shape[1] :].tolist(),
    }


def generate(model: DeepseekV41ForCausalLM, token_ids: Tensor, num_tokens: int) -> Tensor:
    """The sequences ``[n, length]`` with so many greedy tokens more."""
    for _ in range(num_tokens):
        logits = model(token_ids, logits_to_keep=1).logits[:, -1]
        token_ids = torch.cat((token_ids, logits.argmax(-1, keepdim=True)), dim=1)
    return token_ids


def load(dtype: str) -> DeepseekV41ForCausalLM:
    """The text part of the checkpoint, its 4- and 8-bit weights widened by the package's own reader."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(CHECKPOINT / "tokenizer.json"))
    model = DeepseekV41ForCausalLM(read_config(dtype), backend=EAGER, tokenizer=tokenizer)
    model.state_dict_adapter.dtype = getattr(torch, dtype)
    stored = {
        name: tensor
        for shard in sorted(CHECKPOINT.glob("*.safetensors"))
        for name, tensor in load_file(str(shard)).items()
        if not name.startswith(_NOT_TEXT)
    }
    own = model.state_dict()
    weights = model.state_dict_adapter.from_hf(stored)
    model.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in weights.items()})
    return model.eval()


def read_config(dtype: str) -> DeepseekV41Config:
    """The checkpoint's config without images, for weights that are widened to one element type."""
    values: dict[str, Any] = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    for unknown_to_the_peer in ("quantization_config", "tokenizer_compatibility"):
        values.pop(unknown_to_the_peer, None)
    values["dtype"] = values["text_config"]["dtype"] = dtype
    values["vision_config"]["num_hidden_layers"] = 0
    return DeepseekV41Config(**values)


if __name__ == "__main__":
    sys.exit(main())
