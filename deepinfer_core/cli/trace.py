"""``deepinfer trace``: record named intermediate tensors of a run, to compare with another one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepinfer_core.cli.model_options import add_model_options
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.runtime.model import BoundModel

_SETTINGS = ("model", "accelerator", "numerics", "fallback", "load_format", "max_model_len")


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "trace",
        description="Run one prompt and write every intermediate tensor that has a name (docs/trace.md) to a "
        "safetensors file; 'deepinfer diff' finds the first difference between two of them.",
    )
    add_model_options(parser)
    parser.add_argument(
        "--token-ids", type=Path, required=True, metavar="FILE.json", help="the prompt: one list of token ids"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors", help="where the trace goes")
    parser.add_argument(
        "--chunk", type=int, default=0, metavar="N", help="tokens per prefill step (default: all in one step)"
    )


def run(args: argparse.Namespace) -> int:
    """Trace one prompt; what can be wrong with the arguments is found before the model is loaded."""
    from deepinfer_core.config.settings import resolve
    from deepinfer_core.engine.opening import open_model
    from deepinfer_core.engine.trace import Trace
    from deepinfer_core.engine.trace_file import require_writable, write_trace

    token_ids = read_token_ids(args.token_ids)
    require_writable(args.out)
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    settings = resolve(given, args.environment).config
    model = open_model(
        settings.model,
        accelerator=settings.accelerator,
        numerics=settings.numerics,
        policy=settings.fallback,
        download_dir=settings.download_dir,
        load_format=settings.load_format,
        max_model_len=settings.max_model_len,
    ).model
    tensors = Trace(model, token_ids, chunk=args.chunk).run()
    write_trace(args.out, tensors, _metadata(args, model))
    print(f"{args.out}: {len(tensors)} tensors of {len(token_ids)} positions; {model.report.summary()}")
    return 0


def read_token_ids(file: Path) -> list[int]:
    """One list of token ids.

    Raises:
        RequestError: The file cannot be read or holds something else.
    """
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"trace: cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(
            f"trace: {file} is not JSON: {error}; it must hold one list of ids, e.g. [0, 17, 25]"
        ) from error
    if not isinstance(found, list):
        raise RequestError(f"trace: {file} holds {_kind(found)}; it must hold one list of ids, e.g. [0, 17, 25]")
    items = cast(list[Any], found)
    wrong = next((number for number, item in enumerate(items) if type(item) is not int), None)
    if wrong is not None:
        raise RequestError(
            f"trace: item {wrong} of {file} is {_kind(items[wrong])}; every item must be a token id, a whole number"
        )
    return items


def _kind(value: Any) -> str:
    """What a value of a JSON file is, in words, short."""
    text = json.dumps(value)
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", float: "a fraction"}
    return f"{names.get(type(value), 'a value')} ({text if len(text) <= 30 else text[:27] + '...'})"


def _metadata(args: argparse.Namespace, model: BoundModel) -> dict[str, str]:
    """What made the trace, for whoever compares it."""
    import deepinfer_core

    return {
        "deepinfer": deepinfer_core.__version__,
        "model": args.model,
        "numerics": model.numerics.name,
        "accelerator": model.report.backend,
        "device": model.report.device,
        "chunk": str(args.chunk),
        "binding": json.dumps(model.report.counts),
    }
