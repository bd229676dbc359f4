"""The file form of ``deepinfer generate``: prompts from one file, results into another."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from deepinfer_core.cli.model_options import given_settings, sampling_fields, sampling_params
from deepinfer_core.cli.output_file import check_outputs
from deepinfer_core.cli.progress import RequestBar
from deepinfer_core.engine.async_llm import AsyncLLM
from deepinfer_core.engine.batch_file import Defaults, PromptLine, read_prompts
from deepinfer_core.engine.batch_results import ResultsFile, failure_of, result_of
from deepinfer_core.engine.batch_run import run_lines
from deepinfer_core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from deepinfer_core.outputs import RequestOutput


def run_file(args: argparse.Namespace) -> int:
    """Complete every line of ``args.file``; returns the exit code.

    Raises:
        ConfigError: A file cannot be read or written.
        RequestError: The parameters that hold for all lines are wrong.
    """
    check_outputs({"--out": args.out}, overwrite=args.overwrite or args.resume)
    if args.out.exists() and args.out.samefile(args.file):
        raise ConfigError(f"--out {args.out} is the file of the prompts; give another one", source="generate")
    sampling_params(args)
    defaults = Defaults(sampling=sampling_fields(args), reasoning_effort=args.reasoning_effort, is_raw=args.raw)
    lines = read_prompts(args.file, defaults)
    results = ResultsFile(args.out, resume=args.resume)
    todo = [line for line in lines if line.number not in results.done]
    llm = AsyncLLM(args.model, **given_settings(args))
    with results, RequestBar(len(todo)) as bar:
        try:
            asyncio.run(_run(llm, todo, results, bar))
        finally:
            print(_summary(args, len(lines), len(todo), bar), file=sys.stderr)
    return 1 if bar.num_failed else 0


async def _run(llm: AsyncLLM, lines: list[PromptLine], results: ResultsFile, bar: RequestBar) -> None:
    def take(line: PromptLine, ended: RequestOutput | RequestError) -> None:
        result = failure_of(line, str(ended)) if isinstance(ended, RequestError) else result_of(line, ended)
        results.add(result)
        outputs = [] if isinstance(ended, RequestError) else ended.outputs
        bar.count(sum(len(completion.token_ids) for completion in outputs), failed="error" in result)

    async with llm:
        await run_lines(llm, lines, take)


def _summary(args: argparse.Namespace, num_lines: int, num_todo: int, bar: RequestBar) -> str:
    """What became of the lines, in one line or two."""
    kept = f", {num_lines - num_todo} were there before" if num_todo < num_lines else ""
    failed = f", {bar.num_failed} failed" if bar.num_failed else ""
    rate = f"{bar.num_tokens} tokens in {bar.seconds:.1f} s, {bar.num_tokens / bar.seconds:.1f} tokens/s"
    done = f"{args.out}: {bar.num_ended - bar.num_failed} of {num_todo} lines done{failed}{kept}; {rate}"
    missing = num_todo - bar.num_ended
    return f"{done}\n{missing} lines were not finished; --resume goes on from here" if missing else done
