"""Options that every command with a model shares."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 512


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, where it runs, and with what arithmetic."""
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or the word tiny")
    parser.add_argument(
        "--accelerator", metavar="A", help="what to run on: auto (default), or a name from 'deepinfer backends'"
    )
    parser.add_argument("--numerics", metavar="N", help="arithmetic: released (default), f32, bf16 or bf16_a8")
    parser.add_argument("--fallback", metavar="POLICY", help="strict, decompose or allow_reference (default)")
    parser.add_argument("--load-format", metavar="F", help="auto (default), or dummy for random weights")
    parser.add_argument(
        "--max-model-len", type=int, metavar="N", help="longest sequence in tokens (default: the model's)"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen."""
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=DEFAULT_MAX_TOKENS,
        metavar="N",
        help=f"tokens to generate at most (default {DEFAULT_MAX_TOKENS})",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 (default) takes the most likely token"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to this mass"
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="keep this many of the likeliest tokens; 0 keeps all"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="makes sampling repeatable")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end at this text (may be repeated)"
    )


def open_llm(args: argparse.Namespace, **settings: Any) -> LLM:
    """The model that the options name; what they leave open comes from environment and settings file."""
    from deepinfer_core.llm import LLM

    names = ("accelerator", "numerics", "fallback", "load_format", "max_model_len")
    chosen = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return LLM(args.model, **chosen, **settings)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The options of :func:`add_sampling_options` as parameters."""
    from deepinfer_core.sampling_params import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=args.stop,
    )
