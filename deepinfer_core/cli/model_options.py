"""Options that every command with a model shares."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.parsing import draft_tokens
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 512

_SETTINGS = (
    "accelerator",
    "numerics",
    "fallback",
    "load_format",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "chunked_prefill",
    "batch_invariant",
    "overlap",
    "step_policy",
    "prefix_cache",
    "prompt_truncation",
    "weight_copies",
    "kv_cache_memory_gib",
)
"""Settings of the engine that have an option; what is not given is left to environment and settings file."""

_DRAFTING = {
    "num_draft_tokens": "--draft-tokens",
    "verification": "--verification",
    "acceptance": "--acceptance",
    "calibration": "--calibration",
}
"""Fields of ``speculative_config``, and their options."""


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


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """How much of the machine a run may use."""
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences that run at once")
    parser.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens of one step (default: 8192)")
    parser.add_argument(
        "--chunked-prefill",
        action=argparse.BooleanOptionalAction,
        help="spread long prompts over several steps (default: yes)",
    )
    parser.add_argument(
        "--batch-invariant",
        action=argparse.BooleanOptionalAction,
        help="the same tokens whatever else runs beside a request; refused where an op cannot promise it (default: no)",
    )
    parser.add_argument(
        "--weight-copies", metavar="C", help="what is kept of quantised weights: dense, packed or auto (default)"
    )
    parser.add_argument(
        "--overlap", metavar="O", help="launch a step before the last one's tokens are known: auto (default), on or off"
    )
    parser.add_argument(
        "--step-policy", metavar="P", help="alternating (default): prompts or decoding; mixed: both in every step"
    )
    parser.add_argument(
        "--prefix-cache", metavar="C", help="reuse what prompts have in common: off (default), exact or bounded"
    )
    parser.add_argument(
        "--prompt-truncation", metavar="T", help="decoder layers on the end of prompts only: off (default) or compact"
    )
    parser.add_argument(
        "--kv-cache-memory-gib", type=float, metavar="M", help="memory for caches (default: a share of what is free)"
    )


def add_drafting_options(parser: argparse.ArgumentParser) -> None:
    """Whether the model's own draft module proposes tokens, and what becomes of them."""
    group = parser.add_argument_group(
        "speculative decoding", "drafts by the model's own draft module; any of these turns them on"
    )
    group.add_argument(
        "--draft-tokens",
        dest="num_draft_tokens",
        type=draft_tokens,
        metavar="N",
        help="drafts of a sequence and step at most: auto for as many as the module was trained for; 0 for none",
    )
    group.add_argument(
        "--verification", metavar="V", help="which drafts are verified: adaptive (default), those that pay; fixed: all"
    )
    group.add_argument(
        "--acceptance",
        metavar="A",
        help="rejection: tokens with the law of plain sampling; coupled: its very tokens, for a seed; auto (default): "
        "coupled with --batch-invariant, else rejection",
    )
    group.add_argument(
        "--calibration",
        metavar="C",
        help="of the drafts' confidence: auto (default) for the file beside the model, none, or a file",
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


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given of those that set the engine, by the names of settings; without the model."""
    given = {name: value for name in _SETTINGS if (value := getattr(args, name, None)) is not None}
    return {**given, **_speculation(args)}


def _speculation(args: argparse.Namespace) -> dict[str, Any]:
    """The setting that the options of :func:`add_drafting_options` make; nothing when none was given.

    Raises:
        ConfigError: Drafts are switched off, and something is said about them.
    """
    given = {name: value for name in _DRAFTING if (value := getattr(args, name, None)) is not None}
    if given.get("num_draft_tokens") != 0:
        return {"speculative_config": given} if given else {}
    others = [f"{_DRAFTING[name]} {value}" for name, value in given.items() if name != "num_draft_tokens"]
    if others:
        raise ConfigError(
            f"--draft-tokens 0 makes no drafts, so that {' and '.join(others)} would say nothing; leave one or the "
            "other out",
            source="speculative decoding",
        )
    return {"speculative_config": None}


def open_llm(args: argparse.Namespace, **settings: Any) -> LLM:
    """The model that the options name; what they leave open comes from ``settings``, environment and settings file."""
    from deepinfer_core.llm import LLM

    return LLM(args.model, **{**settings, **given_settings(args)})


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The options of :func:`add_sampling_options` as parameters."""
    from deepinfer_core.sampling_params import SamplingParams

    return SamplingParams(**sampling_fields(args))


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The options of :func:`add_sampling_options` as fields of parameters, not checked."""
    names = ("temperature", "top_p", "top_k", "seed", "max_tokens", "stop")
    return {name: getattr(args, name) for name in names}
