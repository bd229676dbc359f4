"""``deepinfer calibrate``: fit the confidence of a model's drafts to how often they are really accepted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.calibration_prompts import (
    NumberedPrompt,
    encode_prompt_lines,
    raise_wrong_lines,
    read_prompt_lines,
)
from deepinfer_core.cli.model_options import add_engine_options, add_model_options, given_settings
from deepinfer_core.cli.output_file import check_outputs, write_json
from deepinfer_core.cli.parsing import add_output_options, positive, whole_number
from deepinfer_core.cli.progress import RequestBar
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import ConfigError, InternalError, RequestError

if TYPE_CHECKING:
    from deepinfer_core.cli.calibrate_report import ObservedRun
    from deepinfer_core.config.settings import Resolved
    from deepinfer_core.engine.engine import Engine
    from deepinfer_core.engine.session import Session
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.speculation.observation import DraftObservation

DEFAULT_MAX_TOKENS = 256
SPECULATION = {"method": "dspark", "num_draft_tokens": "auto", "verification": "fixed", "calibration": "none"}
"""Whole blocks, verified in full width: lengths that follow confidence would hide what becomes of the other drafts."""

_EPILOG = """\
examples:
  deepinfer calibrate tiny --prompts prompts.jsonl --output calibration.json
  deepinfer calibrate tiny --prompts prompts.jsonl --num-prompts 100 --json report.json --plot picture.png
  deepinfer calibrate tiny --prompts prompts.jsonl --raw --temperature 0 --output greedy.json

Every line of the file is an object with one of prompt, prompt_token_ids or messages; other fields are ignored. Half of
the requests are fitted on, the other half is what the table is about. Without --output the file goes beside the model,
where speculative decoding looks for it. Exit code 1 means that requests failed.
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "calibrate",
        description="Run prompts with speculative decoding, compare the confidence of drafts with what became of them, "
        "and write temperatures that make the two agree.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    add_engine_options(parser)
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE.jsonl", help="prompts like those that the model will get"
    )
    parser.add_argument(
        "--raw", action="store_true", help="texts are the exact prompts, special tokens recognised, not users' messages"
    )
    parser.add_argument(
        "--num-prompts", type=positive, metavar="N", help="take the first N prompts only (default: all)"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="at which tokens are sampled (default 1)"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=DEFAULT_MAX_TOKENS,
        metavar="N",
        help=f"tokens that each request generates at most (default {DEFAULT_MAX_TOKENS})",
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="S", help="of sampling (default 0)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the calibration (default: dspark_calibration.json beside the model)",
    )
    add_output_options(parser)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw reliability diagrams, before and after")


def run(args: argparse.Namespace) -> int:
    """Calibrate, write and print; what can be wrong with the arguments is found before the weights are read."""
    from deepinfer_core.cli.calibrate_report import as_json, calibration_of, lines, title
    from deepinfer_core.config.extras import require_plotting
    from deepinfer_core.config.settings import resolve
    from deepinfer_core.speculation.calibration import fit_and_measure
    from deepinfer_core.speculation.calibration_file import write_calibration
    from deepinfer_core.speculation.calibration_plot import plot_calibration

    settings = resolve({"model": args.model, **_settings(args)}, args.environment)
    beside = _calibration_beside_model(settings)
    prompts, params = read_prompt_lines(args.prompts, args.num_prompts), _params(args)
    output = args.output or beside
    check_outputs({"--output": output, "--json": args.json, "--plot": args.plot}, overwrite=args.overwrite)
    if args.plot:
        require_plotting("--plot")
    observed = observe_prompts(args, prompts, params)
    fit = fit_and_measure(observed.blocks)
    write_calibration(output, calibration_of(observed, fit))
    print("\n".join([*lines(observed, fit), f"{output}: {len(fit.temperatures)} temperatures"]))
    if args.json:
        write_json(args.json, as_json(observed, fit))
    if args.plot:
        plot_calibration(fit, title(observed), args.plot)
    return 1 if observed.num_failed else 0


def observe_prompts(args: argparse.Namespace, prompts: Sequence[NumberedPrompt], params: SamplingParams) -> ObservedRun:
    """Open the model, let it answer every prompt, and keep what became of every block of drafts.

    Raises:
        DeepInferError: Anything wrong with model, machine or prompts, in words.
    """
    from deepinfer_core.cli.calibrate_report import ObservedRun
    from deepinfer_core.cli.describe import setting_values
    from deepinfer_core.engine.cache_identity import cache_identity
    from deepinfer_core.engine.session import open_session

    session = open_session(args.model, _settings(args))
    try:
        token_ids = encode_prompt_lines(prompts, session.prompts, is_raw=args.raw)
        _check_requests(session, token_ids, params, [number for number, _ in prompts])
        blocks, num_failed = collect(session.engine, token_ids, params)
    finally:
        session.engine.close()
    return ObservedRun(
        model=args.model,
        checkpoint=cache_identity(session.opened, session.settings.config).model,
        num_requests=len(prompts),
        num_failed=num_failed,
        blocks=blocks,
        params=params,
        prompts=str(args.prompts),
        settings=setting_values(session.settings),
        binding=session.opened.model.report,
    )


def collect(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[list[DraftObservation], int]:
    """Run prompts at once and collect every verified block.

    Args:
        engine: Idle, with :data:`SPECULATION`.
        prompts: Token ids.
        params: For every request; the number of a request, from 0, is added to the seed.

    Returns:
        Blocks in the order of the requests, and how many requests failed.
    """
    blocks: list[DraftObservation] = []
    draft_log = engine.draft_log
    if draft_log is None:
        raise InternalError("calibrate: the engine makes no drafts (this is a bug in DeepInfer, please report it)")
    draft_log.observe = blocks.append
    try:
        with RequestBar(len(prompts)) as bar:
            for number, token_ids in enumerate(prompts):
                engine.add(str(number), token_ids, replace(params, seed=(params.seed or 0) + number))
            for record in engine.run():
                completion = record.outputs[0]
                bar.count(len(completion.token_ids), failed=completion.finish_reason == "error")
            num_failed = bar.num_failed
    finally:
        draft_log.observe = None
    return sorted(blocks, key=lambda block: int(block.request_id)), num_failed


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {**given_settings(args), "speculative_config": SPECULATION}


def _params(args: argparse.Namespace) -> SamplingParams:
    from deepinfer_core.sampling_params import SamplingParams

    return SamplingParams(
        temperature=args.temperature, max_tokens=args.max_tokens, seed=args.seed, output_kind="final", detokenize=False
    )


def _calibration_beside_model(settings: Resolved) -> Path:
    """Where the file belongs, if the user names no other place.

    Raises:
        ConfigError: The model makes no drafts.
    """
    from deepinfer_core.engine.model_config import fetch_config, find_config
    from deepinfer_core.speculation.calibration_file import CALIBRATION_FILE

    config = settings.config
    found = find_config(config.model, download=partial(fetch_config, cache_dir=config.download_dir))
    if found.architecture.draft is None:
        raise ConfigError(
            f"{config.model} has no draft module (num_nextn_predict_layers of its config is 0), so there is no "
            "confidence to calibrate; name a model that has one",
            source="calibrate",
        )
    return found.folder / CALIBRATION_FILE


def _check_requests(
    session: Session, prompts: Sequence[Sequence[int]], params: SamplingParams, numbers: Sequence[int]
) -> None:
    """Refuse prompts that the engine would refuse, all at once and before any runs."""
    problems: list[str] = []
    for number, token_ids in zip(numbers, prompts, strict=True):
        try:
            session.engine.check(token_ids, params)
        except RequestError as error:
            problems.append(f"line {number}: {error}")
    raise_wrong_lines(problems)
