"""The command ``deepinfer``: finds the subcommand, imports that one only, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import deepinfer_core
from deepinfer_core.errors import DeepInferError, InternalError

if TYPE_CHECKING:
    from types import ModuleType

COMMANDS = {
    "generate": "answer one prompt, or a file of prompts",
    "chat": "talk to a model",
    "bench": "measure throughput or latency",
    "calibrate": "fit the confidence of the draft module to how drafts fare",
    "fit": "find out on how many devices a model fits, before downloading it",
    "describe": "show the settings of a run, where each came from, and the model they run",
    "check": "find everything that is wrong with a checkpoint, without reading its weights",
    "trace": "record named intermediate tensors of a run",
    "diff": "find the first tensor in which two traces part",
    "conformance": "run the conformance kit on a backend",
    "backends": "show every backend, why one cannot be used here, and its op table",
}
"""Command -> what it does. Module ``deepinfer_core.cli.<command>`` has ``register(subparsers) -> None``, which adds the
command's parser and imports nothing heavy, and ``run(args) -> int``, which returns the exit code; ``args.environment``
holds what the environment sets."""

_EPILOG = """\
examples:
  deepinfer generate tiny "What is 17 + 25?"
  deepinfer fit released --devices 8
  deepinfer generate --help

The word tiny is a small model that ships with the project, released the config of the released one. Exit codes: 0 done,
1 what was asked about failed, 2 a mistake in what was given, 130 interrupted, 141 the reader of the output went away.
"""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: Words after ``deepinfer``; those of the process by default.

    Returns:
        What the command returns; 2 for an error of the user's, with its message on stderr; 130 after Ctrl-C;
        141 when the reader of the output has gone.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except InternalError:
        raise  # our own bug: whoever reports it needs the traceback
    except DeepInferError as error:
        print(f"deepinfer: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("deepinfer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered cannot be written either; without this the interpreter complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser with every command listed and one of them complete.

    Args:
        command: The command whose module is imported for its own options; none by default.
    """
    parser = argparse.ArgumentParser(
        prog="deepinfer",
        description="Run DeepSeek-V4.1-Flash checkpoints.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"deepinfer {deepinfer_core.__version__}")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="what to say on stderr (default: info)"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == command:
            _module(name).register(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _run(arguments: Sequence[str]) -> int:
    command = next((word for word in arguments if word in COMMANDS), "")
    args = build_parser(command).parse_args(arguments)

    from deepinfer_core import logging
    from deepinfer_core.config import env

    args.environment = env.read()
    logging.configure(args.log_level or args.environment.log_level or "info")
    code = _module(args.command).run(args)
    sys.stdout.flush()  # a reader that has gone must be noticed here, not at exit
    return code


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"deepinfer_core.cli.{command}")
