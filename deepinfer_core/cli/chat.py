"""``deepinfer chat``: a conversation on the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from deepinfer_core.cli.generate import write_stream
from deepinfer_core.cli.model_options import add_model_options, add_sampling_options, open_llm, sampling_params
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.chat import Message

HELP = "/new starts over, /quit or Ctrl-D ends"


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        description=f"Talk to a model; it sees the conversation so far. {HELP}. "
        "Questions may also come from a pipe, one per line.",
    )
    add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--reasoning-effort", default="none", metavar="E", help="none (default), low, high or max")
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read a line, answer it, until the input ends."""
    params = sampling_params(args)
    start: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    with open_llm(args, max_num_seqs=1) as llm:
        if sys.stdin.isatty():
            print(HELP, file=sys.stderr)
        messages = list(start)
        while (line := _read()) is not None:
            if line == "/quit":
                break
            if line == "/new":
                messages = list(start)
                continue
            if not line:
                continue
            asked: list[Message] = [*messages, {"role": "user", "content": line}]
            try:
                ids = llm.encode_chat(asked, reasoning_effort=args.reasoning_effort)
                answer = write_stream(llm.stream({"prompt_token_ids": ids}, params))
            except RequestError as error:
                print(f"deepinfer: {error}; {HELP}", file=sys.stderr)
                continue
            sys.stdout.write("\n")
            messages = [*asked, {"role": "assistant", "content": answer}]
    return 0


def _read() -> str | None:
    """The next line without surrounding space, or None at the end of the input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None
