"""``deepinfer generate``: complete one prompt, text as it comes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from deepinfer_core.cli.model_options import add_model_options, add_sampling_options, open_llm, sampling_params
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import NumericError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer_core.outputs import RequestOutput


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "generate",
        description="Answer one prompt. Only the completion is written to stdout; everything else goes to stderr.",
    )
    add_model_options(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="a question, or with --raw the exact text to continue")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="send PROMPT as it is, special tokens recognised, instead of as a user's message",
    )
    parser.add_argument(
        "--reasoning-effort", default="none", metavar="E", help="none (default), low, high or max; not with --raw"
    )
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Generate and print."""
    params = sampling_params(args)
    with open_llm(args, max_num_seqs=1) as llm:
        prompt = args.prompt
        if not args.raw:
            messages = [{"role": "user", "content": prompt}]
            prompt = {"prompt_token_ids": llm.encode_chat(messages, reasoning_effort=args.reasoning_effort)}
        write_stream(llm.stream(prompt, params))
    sys.stdout.write("\n")
    return 0


def write_stream(outputs: Iterator[RequestOutput]) -> str:
    """Write text to stdout as it grows; returns all of it.

    Raises:
        NumericError: The request failed while it ran.
    """
    written = ""
    for output in outputs:
        completion = output.outputs[0]
        sys.stdout.write(completion.text[len(written) :])
        sys.stdout.flush()
        written = completion.text
        if completion.error:
            raise NumericError(f"generation stopped after {len(completion.token_ids)} tokens: {completion.error}")
    return written
