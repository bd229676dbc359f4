"""Held-out tasks of the tiny model, greedy: share of exact answers per task, against the figures it was published with.

    python benchmarks/quality.py [--numerics N] [--cache-sequences N] [--also SETTING=VALUE ...] [--json FILE]

With ``--cache-sequences 3`` everything runs a second time in a cache of three sequences' size, among companions that
outgrow a cache block while they run, so that sequences are preempted and computed anew. With ``--also``, everything
runs a second time with settings of the engine, such as ``prompt_truncation=compact`` or
``speculative_config={"verification":"adaptive"}``; with a prefix cache twice in the same engine, so that the answers
that count begin with hits. Exits with 1 when a task is off by more than one point (0.01), when nothing was preempted
though it should be, or when preemption changes a token in ``f32``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.speculation import speculative_config
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.engine.opening import OpenedModel, open_model
from deepinfer_core.engine.statistics import EngineStatistics

ROOT = Path(__file__).resolve().parent.parent
HELDOUT = ROOT / "tests/data/eval_heldout.jsonl"
ALLOWED_DIFFERENCE = 0.01
COMPANION_TOKENS = 8
"""Tokens that a companion generates; the first half still fits into its first block. No answer of the tasks is long
enough to leave the blocks that its prompt begins in, so without companions nothing would ever be preempted."""
MAX_TOKENS = 128
END = "<｜end▁of▁sentence｜>"
PUBLISHED = {
    "add": 15, "sub": 14, "sort": 15, "reverse": 16, "copy": 16, "count": 10, "json": 13, "code": 14, "tool": 16,
    "recall": 16, "story": 16, "think": 16, "recall_400": 8, "recall_800": 8, "recall_1500": 8,
}  # fmt: skip
"""Right answers of the exported checkpoint per task, of 16 (of 8 for the long documents): the shares that the model's
own table gives, rounded to two digits there."""


def main() -> int:
    """Run all prompts as one batch, with preemption too if that is asked for, and print the table."""
    args = parse_arguments()
    items = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    items = [item for item in items if not args.tasks or item["task"] in args.tasks]
    also = dict(args.also)
    drafts = speculative_config(also.get("speculative_config"))
    opened = open_model("tiny", accelerator=args.accelerator, numerics=args.numerics, speculation=drafts)
    plain = replace(opened, model=replace(opened.model, drafting=None))
    free = run(plain, items, args, "free", {})
    runs = [free]
    if args.cache_sequences:
        runs.append(run(plain, items, args, "preempted", small_cache(plain, free, args.cache_sequences)))
    if args.also:
        runs.append(run(opened if drafts else plain, items, args, "also", also))
    print_table(items, runs)
    print(opened.model.report.summary())
    problems = [problem for one in runs for problem in one.problems] + compare(runs, args.numerics)
    for problem in problems:
        print(f"not as it should be: {problem}")
    if args.json:
        record = describe(args, opened, items, runs, problems)
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


def parse_arguments() -> argparse.Namespace:
    """What the user asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--numerics", default="released", help="arithmetic (default released)")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="sequences at once (default 32)")
    parser.add_argument("--tasks", nargs="+", choices=list(PUBLISHED), help="only these (default all)")
    parser.add_argument(
        "--cache-sequences",
        type=int,
        default=0,
        metavar="N",
        help="run everything again in a cache that N of the longest sequences fill, with company that preempts",
    )
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        type=setting,
        metavar="SETTING=VALUE",
        help="run everything again with these settings of the engine",
    )
    return parser.parse_args()


def setting(text: str) -> tuple[str, Any]:
    """A name and a value, which is JSON or a word."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All prompts under one setting of the engine.

    Attributes:
        name: What the table calls it.
        settings: What was set besides the usual.
        token_ids: Of each completion.
        longest: Tokens of the longest sequence, prompt and output.
        table: Share of right answers, by task.
        num_cached_tokens: Tokens of prompts that were found in the prefix cache.
        num_preemptions: How often completions were preempted, companions not counted.
        statistics: Of the engine, in the end.
        seconds: From the first request to the last token.
    """

    name: str
    settings: dict[str, Any]
    token_ids: list[tuple[int, ...]]
    longest: int
    table: dict[str, dict[str, float]]
    num_cached_tokens: int
    num_preemptions: int
    statistics: EngineStatistics
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Tasks that are off by more than one point, and memory that did not come back."""
        found = [
            f"{self.name}: {task} has {row['exact']:.3f} exact, published {row['published']:.3f}"
            for task, row in self.table.items()
            if abs(row["exact"] - row["published"]) > ALLOWED_DIFFERENCE
        ]
        if self.statistics.num_free_blocks != self.statistics.num_blocks:
            found.append(f"{self.name}: {self.statistics.num_free_blocks} of {self.statistics.num_blocks} blocks free")
        return found


def run(
    opened: OpenedModel, items: list[dict[str, Any]], args: argparse.Namespace, name: str, settings: dict[str, Any]
) -> Run:
    """All prompts through an engine of their own."""
    if opened.tokenizer is None:
        raise SystemExit("the tiny model has lost its tokenizer")
    engine = Engine(opened, EngineConfig(model="tiny", max_num_seqs=args.max_num_seqs, **settings))
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, output_kind="final")
    if settings.get("prefix_cache", "off") != "off":
        for number, item in enumerate(items):
            engine.add(f"before {number}", opened.tokenizer.encode(item["prompt"]), params)
        list(engine.run())
    start = time.monotonic()
    for number, item in enumerate(items):
        token_ids = opened.tokenizer.encode(item["prompt"])
        engine.add(str(number), token_ids, params)
        if args.cache_sequences and settings:
            add_companion(engine, f"companion of {number}", token_ids)
    ended = {output.request_id: output for output in engine.run()}
    seconds = time.monotonic() - start
    outputs = [ended[str(number)] for number in range(len(items))]
    token_ids = [tuple(output.outputs[0].token_ids) for output in outputs]
    texts = [opened.tokenizer.decode(ids, skip_special_tokens=False) for ids in token_ids]
    return Run(
        name=name,
        settings=settings,
        token_ids=token_ids,
        longest=max(len(output.prompt_token_ids) + len(output.outputs[0].token_ids) for output in outputs),
        table=score(items, texts),
        num_cached_tokens=sum(output.metrics.num_cached_tokens for output in outputs if output.metrics is not None),
        num_preemptions=sum(output.metrics.num_preemptions for output in outputs if output.metrics is not None),
        statistics=engine.statistics(),
        seconds=seconds,
    )


def add_companion(engine: Engine, request_id: str, token_ids: list[int]) -> None:
    """A request that needs a second cache block after half of its tokens."""
    length = BLOCK_TOKENS - COMPANION_TOKENS // 2
    prompt = (token_ids * (length // len(token_ids) + 1))[:length]
    params = SamplingParams(temperature=0.0, max_tokens=COMPANION_TOKENS, ignore_eos=True, output_kind="final")
    engine.add(request_id, prompt, params)


def small_cache(opened: OpenedModel, free: Run, num_sequences: int) -> dict[str, Any]:
    """Settings for a cache that so many of the longest sequences fill; admission leaves no room, so it gets tight."""
    layout = opened.model.layout
    num_bytes = num_sequences * layout.blocks_for(free.longest) * layout.bytes_per_block
    return {"kv_cache_memory_gib": (num_bytes + layout.bytes_per_block / 2) / 2**30, "headroom_blocks": 0}


def compare(runs: list[Run], numerics: str) -> list[str]:
    """What preemption must not do: not happen, or change a token where no rounding depends on company."""
    if len(runs) == 1 or runs[1].name != "preempted":
        return []
    found = [] if runs[1].num_preemptions else ["nothing was preempted; take fewer --cache-sequences"]
    num_changed = num_other_tokens(runs)
    if numerics in ("f32", "f64") and num_changed:
        found.append(f"{num_changed} completions have other tokens after preemption, though {numerics} permits none")
    return found


def num_other_tokens(runs: list[Run]) -> int:
    """Completions whose tokens are not those of the first run."""
    return sum(a != b for a, b in zip(runs[0].token_ids, runs[-1].token_ids, strict=True))


def print_table(items: list[dict[str, Any]], runs: list[Run]) -> None:
    """The shares of all runs, side by side, and what preemption did."""
    print(f"{'task':<12} {'prompts':>7} {'published':>9}" + "".join(f" {one.name:>9}" for one in runs))
    for task, row in runs[0].table.items():
        shares = "".join(f" {one.table[task]['exact']:>9.3f}" for one in runs)
        print(f"{task:<12} {row['prompts']:>7} {row['published']:>9.3f}{shares}")
    for one in runs:
        facts = f"{one.statistics.num_blocks} blocks, {one.num_preemptions} preemptions"
        facts += f", {one.num_cached_tokens} cached tokens" if one.num_cached_tokens else ""
        print(f"{one.name}: {len(items)} prompts in {one.seconds:.0f} s, {facts}")
    if len(runs) > 1:
        print(f"completions with other tokens in the last run: {num_other_tokens(runs)} of {len(items)}")


def score(items: list[dict[str, Any]], texts: list[str]) -> dict[str, dict[str, float]]:
    """Share of right answers per task and over all prompts."""
    right: dict[str, list[bool]] = defaultdict(list)
    for item, text in zip(items, texts, strict=True):
        right[item["task"]].append(is_right(item, text.split(END)[0]))
    counts = {task: (sum(hits), len(hits), PUBLISHED[task]) for task, hits in right.items()}
    counts["all"] = tuple(sum(column) for column in zip(*counts.values(), strict=True))  # type: ignore[assignment]
    return {
        task: {"prompts": number, "exact": hits / number, "published": published / number}
        for task, (hits, number, published) in counts.items()
    }


def is_right(item: dict[str, Any], text: str) -> bool:
    """Exact match, or the pattern of the grammar for stories."""
    if item["match"] == "regex":
        return re.fullmatch(item["answer"], text) is not None
    return text == item["answer"]


def describe(
    args: argparse.Namespace, opened: OpenedModel, items: list[dict[str, Any]], runs: list[Run], problems: list[str]
) -> dict[str, Any]:
    """The result with what is needed to understand it."""
    return {
        "what": "held-out tasks of the tiny model, greedy",
        "comparison": f"exact match per task against the exported checkpoint's published share, "
        f"within {ALLOWED_DIFFERENCE}; in f32 no token may change by preemption",
        "passed": not problems,
        "problems": problems,
        "model": "tiny",
        "num_prompts": len(items),
        "numerics": args.numerics,
        "max_num_seqs": args.max_num_seqs,
        "machine": describe_machine(),
        "versions": describe_versions(opened.model.report.backend),
        "binding": opened.model.report.as_json(),
        "runs": {
            one.name: {
                "settings": one.settings,
                "num_blocks": one.statistics.num_blocks,
                "num_cached_tokens": one.num_cached_tokens,
                "num_preemptions": one.num_preemptions,
                "num_preemptions_with_companions": one.statistics.num_preemptions,
                "num_completions_with_other_tokens": num_other_tokens([runs[0], one]),
                "seconds": round(one.seconds, 1),
                "tasks": one.table,
            }
            for one in runs
        },
    }


if __name__ == "__main__":
    sys.exit(main())
