"""What a prefix hit is worth and what it costs: cold, exact and bounded, for one long prompt that comes twice.

    python benchmarks/prefix_cache.py [--model tiny|slice] [--accelerator A] [--prompt 1500] [--json FILE]

Each mode has an engine of its own. The prompt is run once to fill the cache, then again with another last token; of
that second run the table shows the time to the first token, the tokens that were computed, and how far the
log-probabilities of the first token lie from those of an engine without a cache. The exit code is 1 when an exact hit
changes a bit.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent)]
from slice import open_slice  # noqa: E402 - beside this file

from deepinfer_core import EngineConfig, SamplingParams  # noqa: E402
from deepinfer_core.config.prompt_truncation import DEFAULT_KEEP_TOKENS  # noqa: E402
from deepinfer_core.engine.engine import Engine  # noqa: E402
from deepinfer_core.engine.opening import OpenedModel, open_model  # noqa: E402

MODES: dict[str, dict[str, Any]] = {
    "cold": {},
    "exact": {"prefix_cache": "exact", "prefix_snapshots": 4},
    "bounded": {"prefix_cache": "bounded", "prefix_snapshots": 0},
    "bounded, truncated prompts": {
        "prefix_cache": "bounded",
        "prompt_truncation": "compact",
        "prompt_keep_tokens": DEFAULT_KEEP_TOKENS,
    },
}
_ALTERNATIVES = 20


def main() -> int:
    """Measure, print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "slice"), default="tiny")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--numerics", default="released", help="arithmetic of the tiny model (default released)")
    parser.add_argument("--batch-invariant", action="store_true", help="row-invariant implementations only")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of the prompt (default 1500)")
    parser.add_argument("--repeats", type=int, default=3, help="second runs of each mode (default 3)")
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    opened = _opened(args)
    rows = {mode: measure(opened, args, settings) for mode, settings in MODES.items()}
    cold = dict(rows["cold"])
    for row in rows.values():
        row["share_of_cold"] = row["ttft_ms"] / cold["ttft_ms"]
        row["max_logprob_difference"] = difference(row.pop("logprobs"), cold["logprobs"])
        row["is_same_token"] = row["token"] == cold["token"]
    print(f"{'mode':<28}{'TTFT ms':>10}{'of cold':>9}{'computed':>10}{'cached':>8}{'max difference':>16}")
    for mode, row in rows.items():
        print(
            f"{mode:<28}{row['ttft_ms']:>10.1f}{row['share_of_cold']:>9.2%}{row['computed']:>10}{row['cached']:>8}"
            f"{row['max_logprob_difference']:>16.2e}"
        )
    if args.json:
        record = {
            "what": f"a prompt of {args.prompt} tokens of the model {args.model}, the second time it comes",
            "method": f"median of {args.repeats} second runs; log-probabilities of the best {_ALTERNATIVES} tokens",
            "machine": dict(opened.model.device.facts),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "batch_invariant": args.batch_invariant,
            "modes": rows,
            "binding": opened.model.report.as_json(),
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if args.batch_invariant and rows["exact"]["max_logprob_difference"] else 0


def _opened(args: argparse.Namespace) -> OpenedModel:
    if args.model == "tiny":
        return open_model(
            "tiny", accelerator=args.accelerator, numerics=args.numerics, batch_invariant=args.batch_invariant
        )
    return OpenedModel(folder=Path(tempfile.mkdtemp()), model=open_slice(args.accelerator), tokenizer=None)


def measure(opened: OpenedModel, args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """One mode: the prompt, then variants of it."""
    config = EngineConfig(model=args.model, max_num_seqs=2, max_model_len=args.prompt + 16, overlap="off", **settings)
    engine = Engine(opened, config)
    vocabulary = min(opened.model.architecture.vocab_size, 900)
    prompt = [5 + (place * 7 + place // 31) % (vocabulary - 5) for place in range(args.prompt)]
    ask(engine, "fill", prompt)  # also brings what is compiled at the first call
    ask(engine, "warm", [*prompt[:-1], 6])
    runs = [ask(engine, f"again {number}", [*prompt[:-1], 7]) for number in range(args.repeats)]
    engine.close()
    last = runs[-1]
    metrics = last.metrics
    return {
        "ttft_ms": 1000 * statistics.median(run.metrics.time_to_first_token_s for run in runs),
        "cached": metrics.num_cached_tokens,
        "computed": args.prompt - metrics.num_cached_tokens,
        "token": last.outputs[0].token_ids[0],
        "logprobs": {token: entry.logprob for token, entry in last.outputs[0].logprobs[0].items()},
    }


def ask(engine: Engine, request_id: str, prompt: list[int]) -> Any:
    """The last record of one request for one token."""
    engine.add(request_id, prompt, SamplingParams(temperature=0.0, max_tokens=1, logprobs=_ALTERNATIVES))
    [last] = [record for record in engine.run() if record.finished]
    return last


def difference(found: dict[int, float], cold: dict[int, float]) -> float:
    """Largest difference of log-probability among the tokens that both name."""
    return max(abs(found[token] - cold[token]) for token in found.keys() & cold.keys())


if __name__ == "__main__":
    sys.exit(main())
