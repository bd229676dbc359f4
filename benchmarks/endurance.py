"""Thousands of requests of every kind through one engine: does memory stay where it was, does everything come back?

    python benchmarks/endurance.py [--num-requests N] [--json FILE] [--png FILE]

Exits with 1 when the resident memory after the last request is more than 5 % above that after the 200th, or when a
cache block or state slot is missing at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer_core import LLM
    from deepinfer_core.outputs import RequestOutput

ALLOWED_GROWTH = 0.05
FIRST_MEASURED = 200
WAVE = 40
REFUSED: list[Any] = [{"prompt_token_ids": [10**6]}, {"prompt_token_ids": [5] * 600}]
WORDS = ("red", "blue", "fox", "owl", "lamp", "ring", "hat", "zebra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state after so many requests."""

    num_requests: int
    rss_mib: float
    num_free_blocks: int
    num_free_state_slots: int
    seconds: float


def main() -> int:
    """Run, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the mix of requests (default 0)")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--png", type=Path, help="file for the curve")
    args = parser.parse_args()
    if args.num_requests <= FIRST_MEASURED:
        parser.error(f"--num-requests must be more than {FIRST_MEASURED}, where the comparison begins")
    result = run(args)
    print(
        f"{result['num_requests']} requests in {result['seconds']:.0f} s: {result['rss_first_mib']:.1f} MiB after "
        f"{FIRST_MEASURED}, {result['rss_last_mib']:.1f} MiB after the last ({100 * result['growth']:+.2f} %); "
        f"all memory free: {result['all_free']}; ended by {result['finish_reasons']}"
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.png:
        plot(result, args.png)
    return 0 if result["passed"] else 1


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run all requests and describe what was seen."""
    from deepinfer_core import LLM

    source, reasons = random.Random(args.seed), Counter[str]()
    with LLM("tiny", accelerator=args.accelerator, max_num_seqs=32, max_model_len=512) as llm:
        start, before = time.monotonic(), llm.statistics()
        samples = [sample(llm, 0, start)]
        for done in range(0, args.num_requests, WAVE):
            for output in wave(llm, source, min(WAVE, args.num_requests - done)):
                reasons.update(completion.finish_reason or "none" for completion in output.outputs)
            samples.append(sample(llm, min(done + WAVE, args.num_requests), start))
        after, report = llm.statistics(), llm.binding_report
    first = next(s for s in samples if s.num_requests >= FIRST_MEASURED)
    growth = samples[-1].rss_mib / first.rss_mib - 1
    all_free = (before.num_free_blocks, before.num_free_state_slots) == (
        after.num_free_blocks,
        after.num_free_state_slots,
    )
    return {
        "what": "requests of every kind through one engine of the tiny model",
        "comparison": f"resident memory after the last request against that after the {FIRST_MEASURED}th, "
        f"at most {ALLOWED_GROWTH:.0%} more; free blocks and slots as at the start",
        "passed": growth <= ALLOWED_GROWTH and all_free,
        "num_requests": args.num_requests,
        "rss_first_mib": first.rss_mib,
        "rss_last_mib": samples[-1].rss_mib,
        "growth": round(growth, 5),
        "all_free": all_free,
        "finish_reasons": dict(reasons),
        "seconds": samples[-1].seconds,
        "statistics": {**asdict(after), "num_finished": dict(after.num_finished)},
        "samples": [asdict(s) for s in samples],
        **machine(report),
    }


def wave(llm: LLM, source: random.Random, number: int) -> Iterator[RequestOutput]:
    """So many requests: one batch with some that are refused, and streams of which some are left early."""
    streamed = min(4, number)
    prompts = [prompt(llm, source) for _ in range(number - streamed)] + REFUSED
    source.shuffle(prompts)
    yield from llm.generate(prompts, [params(source) for _ in prompts], use_tqdm=False, on_invalid="return")
    for _ in range(streamed):
        patience = source.randrange(1, 12)
        for count, output in enumerate(llm.stream(prompt(llm, source), params(source)), 1):
            if output.finished or count == patience:
                yield output
                break


def prompt(llm: LLM, source: random.Random) -> Any:
    """A task that the model knows."""
    words = " ".join(source.choices(WORDS, k=source.randrange(1, 12)))
    task = source.choice([f"Copy this: {words}", f"Repeat exactly: {words}", "Compute 60 + 15.", "Tell a story."])
    return {"prompt_token_ids": llm.encode_chat([{"role": "user", "content": task}])}


def params(source: random.Random) -> Any:
    """Parameters that reach every part of the sampler and of the outputs."""
    from deepinfer_core import SamplingParams

    common = {"max_tokens": source.randrange(1, 24), "logprobs": source.choice([None, None, 3])}
    return source.choice(
        [
            SamplingParams(temperature=0.0, **common),
            SamplingParams(temperature=1.0, seed=source.getrandbits(32), top_p=0.9, top_k=20, **common),
            SamplingParams(n=2, temperature=1.2, frequency_penalty=0.3, repetition_penalty=1.1, **common),
            SamplingParams(temperature=0.0, stop=["blue", "ring"], prompt_logprobs=1, **common),
            SamplingParams(temperature=0.7, bad_words=["red fox"], logit_bias={5: 2.0}, min_p=0.02, **common),
        ]
    )


def sample(llm: LLM, num_requests: int, start: float) -> Sample:
    """Look at memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now = llm.statistics()
    return Sample(
        num_requests=num_requests,
        rss_mib=round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2),
        num_free_blocks=now.num_free_blocks,
        num_free_state_slots=now.num_free_state_slots,
        seconds=round(time.monotonic() - start, 1),
    )


def machine(report: Any) -> dict[str, Any]:
    """Where this ran."""
    import torch

    import deepinfer_core

    versions = {"deepinfer_core": deepinfer_core.__version__, "torch": torch.__version__}
    return {
        "machine": {"processor": report.device, "threads": torch.get_num_threads(), "system": platform.system()},
        "versions": {**versions, "python": platform.python_version()},
    }


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw resident memory over requests, with the band that it has to stay below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples, first = result["samples"], result["rss_first_mib"]
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot([s["num_requests"] for s in samples], [s["rss_mib"] for s in samples], label="resident memory")
    axes.axhline(first * (1 + ALLOWED_GROWTH), linestyle="--", color="tab:red", label="5 % above the 200th request")
    axes.axvline(FIRST_MEASURED, linestyle=":", color="grey")
    axes.set(
        xlabel="requests", ylabel="MiB", title="One engine, the tiny model, requests of every kind", ylim=(0, None)
    )
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
