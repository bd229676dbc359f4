"""``deepinfer generate``: answer one prompt, text as it comes, or a file of prompts, results in another file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deepinfer_core.cli.answer import Answer
from deepinfer_core.cli.model_options import (
    add_drafting_options,
    add_engine_options,
    add_model_options,
    add_sampling_options,
    open_llm,
    sampling_params,
)
from deepinfer_core.cli.parsing import InsteadOf
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import ConfigError

_EPILOG = """\
examples:
  deepinfer generate tiny "What is 17 + 25?"
  deepinfer generate tiny "Tell a story about a zebra." --temperature 0.7 --seed 1
  deepinfer generate tiny --file prompts.txt --out results.jsonl
  deepinfer generate tiny --file prompts.jsonl --out results.jsonl --resume

A file of prompts has one on each line: a text, treated as PROMPT is, or, if its name ends in .jsonl, an object with
prompt, prompt_token_ids or messages, and if you like id, reasoning_effort, tools and any sampling parameter. What a
line does not say comes from the options. A line that is wrong fails alone; then the exit code is 1. Each result is
written as soon as it is there, and all are in the order of the prompts in the end; Ctrl-C keeps what is finished, and
--resume goes on from there.
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "generate",
        usage="deepinfer generate MODEL (PROMPT | --file PROMPTS --out RESULTS) [options]",
        description="Answer one prompt, or all prompts of a file. Of one prompt only the completion is written to "
        "stdout; everything else goes to stderr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    prompt = parser.add_argument(
        "prompt", metavar="PROMPT", help="a question, or with --raw the exact text to continue"
    )
    parser.add_argument(
        "--file",
        type=Path,
        action=InsteadOf,
        argument=prompt,
        metavar="PROMPTS",
        help="answer every line of this file instead",
    )
    parser.add_argument("--out", type=Path, metavar="RESULTS", help="with --file: where the results go, as JSON lines")
    parser.add_argument("--overwrite", action="store_true", help="replace RESULTS if it exists")
    parser.add_argument("--resume", action="store_true", help="keep the results that RESULTS has and add the others")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="send texts as they are, special tokens recognised, instead of as a user's message",
    )
    parser.add_argument(
        "--reasoning-effort", default="none", metavar="E", help="none (default), low, high or max; not with --raw"
    )
    add_sampling_options(parser)
    add_engine_options(parser)
    add_drafting_options(parser)


def run(args: argparse.Namespace) -> int:
    """Generate and print, or work through a file."""
    _check_usage(args)
    if args.file is not None:
        from deepinfer_core.cli.batch import run_file

        return run_file(args)
    params = sampling_params(args)
    with open_llm(args, max_num_seqs=1) as llm:
        prompt = args.prompt
        if not args.raw:
            messages = [{"role": "user", "content": prompt}]
            prompt = {"prompt_token_ids": llm.encode_chat(messages, reasoning_effort=args.reasoning_effort)}
        Answer().follow(llm.stream(prompt, params))
    sys.stdout.write("\n")
    return 0


def _check_usage(args: argparse.Namespace) -> None:
    """One prompt, or a file with a place for its results."""
    problems: list[str] = []
    if (args.prompt is None) == (args.file is None):
        problems.append("give either PROMPT or --file PROMPTS")
    if (args.file is None) != (args.out is None):
        problems.append("--file and --out belong together: where the prompts are, and where the results go")
    if args.out is None and (args.overwrite or args.resume):
        problems.append("--overwrite and --resume are about the file of --out, which is not given")
    if args.overwrite and args.resume:
        problems.append("--overwrite throws away what --resume keeps; give one of them")
    if args.raw and args.reasoning_effort != "none":
        problems.append("--reasoning-effort cannot change a prompt that is sent as it is; leave it or --raw out")
    if problems:
        raise ConfigError(problems, source="generate")
