"""``deepinfer bench``: throughput of many requests at once, latency of one after the other."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.bench_report import BenchRun, as_json, lines, title
from deepinfer_core.cli.model_options import add_drafting_options, add_engine_options, add_model_options, open_llm
from deepinfer_core.cli.output_file import check_outputs, write_json
from deepinfer_core.cli.parsing import add_output_options, positive, rate, whole_number, whole_numbers
from deepinfer_core.cli.progress import track
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.engine.batch_file import PromptLine
    from deepinfer_core.engine.benchmark import Measurement
    from deepinfer_core.engine.benchmark_goals import Goal
    from deepinfer_core.llm import LLM
    from deepinfer_core.sampling_params import SamplingParams

BENCHMARKS = {
    "throughput": "all requests at once, or at a rate: requests and tokens in a second",
    "latency": "one request after the other: time to the first token and from token to token",
}
DEFAULT_NUM_REQUESTS = {"throughput": 64, "latency": 8}

_EPILOG = """\
examples:
  deepinfer bench throughput tiny --num-requests 32 --input-len 64,256 --output-len 32 --json result.json
  deepinfer bench latency tiny --input-len 512 --output-len 64 --png latency.png
  deepinfer bench throughput tiny --file prompts.txt --output-len 32
  deepinfer bench throughput tiny --request-rate 4 --max-concurrency 16 --goodput ttft:500 tpot:50

Prompts are random tokens, the same for a seed on every machine, or come from a file as 'deepinfer generate --file'
reads it. Every request generates exactly --output-len tokens. Warm-up requests come first and are not counted. Exit
code 1 means that requests failed. With --request-rate or --max-concurrency a request's times begin when it is sent.
"""


def register(subparsers: Subparsers) -> None:
    """Add the command and its two kinds."""
    parser = subparsers.add_parser(
        "bench",
        description="Measure a model. Every kind has its own --help.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(
        dest="benchmark", metavar="KIND", required=True, help="what to measure: throughput or latency"
    )
    for name, summary in BENCHMARKS.items():
        kind = kinds.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(kind, DEFAULT_NUM_REQUESTS[name])


def _add_options(parser: argparse.ArgumentParser, num_requests: int) -> None:
    add_model_options(parser)
    add_engine_options(parser)
    add_drafting_options(parser)
    parser.add_argument(
        "--num-requests",
        type=positive,
        metavar="N",
        help=f"requests to measure (default {num_requests}, or all prompts of --file)",
    )
    parser.add_argument(
        "--input-len",
        type=whole_numbers,
        default=(128,),
        metavar="LENGTHS",
        help="tokens of a prompt; several with commas between them are taken in turn (default 128)",
    )
    parser.add_argument("--file", type=Path, metavar="PROMPTS", help="take the prompts from a file instead")
    parser.add_argument(
        "--output-len", type=positive, default=32, metavar="N", help="tokens that each request generates (default 32)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 (default) takes the most likely token"
    )
    parser.add_argument(
        "--warmup", type=whole_number, default=1, metavar="N", help="requests before those that count (default 1)"
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="S", help="of prompts and sampling (default 0)")
    _add_load_options(parser)
    add_output_options(parser)
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw how the times are distributed")


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--request-rate",
        type=rate,
        metavar="R",
        help="requests that arrive in a second, on average, at random times (default inf: all at once); of throughput",
    )
    parser.add_argument(
        "--max-concurrency",
        type=positive,
        metavar="N",
        help="unfinished requests at once; more are sent when others have ended (default: no limit); of throughput",
    )
    parser.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="KIND:MS",
        help="also count the requests that keep these limits in milliseconds; kinds are ttft, tpot and e2e",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from deepinfer_core.config.extras import require_plotting
    from deepinfer_core.engine.benchmark import fixed_length
    from deepinfer_core.engine.benchmark_goals import KINDS, parse_goals
    from deepinfer_core.engine.benchmark_plot import plot_times

    goals = parse_goals(args.goodput)
    _check_load(args)
    check_outputs({"--json": args.json, "--png": args.png}, overwrite=args.overwrite)
    if args.png:
        require_plotting("--png")
    params = fixed_length(args.output_len, temperature=args.temperature)
    with open_llm(args) as llm:
        prompts = _prompts(args, llm)
        measurement = _measure(args, llm, prompts, params)
        done = BenchRun(
            benchmark=args.benchmark,
            measurement=measurement,
            goals=goals,
            configuration=_configuration(args, len(prompts), llm, goals),
            binding=llm.binding_report,
        )
    print("\n".join(lines(done)))
    if args.json:
        write_json(args.json, as_json(done))
    if args.png:
        limits = {KINDS[goal.kind]: goal.limit_s for goal in goals}
        plot_times(measurement.times, title(done), args.png, limits)
    return 1 if measurement.num_failed else 0


def _measure(
    args: argparse.Namespace, llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> Measurement:
    from deepinfer_core.engine.benchmark import measure_latency, measure_throughput
    from deepinfer_core.engine.benchmark_load import Load, measure_load

    if args.warmup:
        measure_throughput(llm, [prompts[n % len(prompts)] for n in range(args.warmup)], params, seed=args.seed)
    if args.benchmark == "latency":
        return measure_latency(llm, prompts, params, seed=args.seed, track=track)
    if _is_load(args):
        load = Load(request_rate=args.request_rate or math.inf, max_concurrency=args.max_concurrency)
        return measure_load(llm.llm_engine, prompts, params, load, seed=args.seed)
    return measure_throughput(llm, prompts, params, seed=args.seed, progress=True)


def _is_load(args: argparse.Namespace) -> bool:
    return args.request_rate is not None or args.max_concurrency is not None


def _check_load(args: argparse.Namespace) -> None:
    """Latency sends one request after the other, so there is no load to choose."""
    if args.benchmark == "latency" and _is_load(args):
        raise ConfigError(
            "--request-rate and --max-concurrency are of throughput; latency sends one request after the other",
            source="bench latency",
        )


def _prompts(args: argparse.Namespace, llm: LLM) -> Sequence[Sequence[int]]:
    from deepinfer_core.engine.benchmark import random_prompts
    from deepinfer_core.engine.model_config import find_config

    if args.file is None:
        number = args.num_requests or DEFAULT_NUM_REQUESTS[args.benchmark]
        return random_prompts(find_config(args.model).architecture, args.input_len, number, args.seed)

    return _file_prompts(args.file, llm)[: args.num_requests]


def _file_prompts(file: Path, llm: LLM) -> Sequence[Sequence[int]]:
    """Token ids of every line; a line that is wrong is an error here, or something else would be measured."""
    from deepinfer_core.engine.batch_file import Defaults, read_prompts

    lines = read_prompts(file, Defaults())
    problems = [f"line {line.number}: {line.error}" for line in lines if line.error]
    if problems:
        raise ConfigError(problems, source=str(file))
    return [_encoded(line, llm) for line in lines]


def _encoded(line: PromptLine, llm: LLM) -> Sequence[int]:
    if line.prompt is None:
        return llm.encode_chat(line.messages, **line.chat_options)
    return line.prompt["prompt_token_ids"] if isinstance(line.prompt, Mapping) else llm.encode(line.prompt)


def _configuration(args: argparse.Namespace, num_requests: int, llm: LLM, goals: Sequence[Goal]) -> dict[str, Any]:
    """Every choice of the run: of the measurement and of the engine, with its source."""
    from deepinfer_core.cli.describe import setting_values

    return {
        "model": args.model,
        "num_requests": num_requests,
        "input_len": list(args.input_len) if args.file is None else None,
        "file": str(args.file) if args.file is not None else None,
        "output_len": args.output_len,
        "temperature": args.temperature,
        "request_rate": None if args.request_rate == math.inf else args.request_rate,
        "max_concurrency": args.max_concurrency,
        "goodput_ms": {goal.kind: 1000 * goal.limit_s for goal in goals},
        "warmup": args.warmup,
        "seed": args.seed,
        "settings": setting_values(llm.settings),
    }
